//! The client's connections and streams, for Python.
//!
//! A call that waits takes a bridge, and returns a future of its loop; or it takes `None`, and returns a waiter. So one
//! connection serves any number of loops and threads.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use headrace_core::http3::message::{self, RequestHead};
use headrace_core::{Error, Kind};
use headrace_net::client::sessions::Origins;
use headrace_net::client::stream::{Options, RequestBody, ResponseStream};
use headrace_net::client::{self, ClientConnection, Target};
use headrace_net::config::Echo;
use headrace_net::tls::{self, Identity, Trust};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::bridge::{Bridge, Outcome};
use crate::convert::{method, seconds, typed_dict};
use crate::waiter::call;
use crate::{convert, errors};

const NOTHING: fn(()) -> Outcome = |()| Outcome::Nothing;

/// How connections are made: whom to trust, and limits.
#[pyclass(frozen, module = "headrace._engine")]
pub struct ClientConfig {
    inner: client::ClientConfig,
}

#[pymethods]
impl ClientConfig {
    /// `trust`: `system`, `only` (the PEM text) or `anybody`. `identity`: the client's certificate chain and
    /// key, as PEM texts. Times are in seconds, sizes in bytes.
    #[new]
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (*, trust, ca_pem, identity, handshake_timeout, idle_timeout, keep_idle, suspect, max_head_bytes, stream_window, connection_window, useless_burst, useless_per_second, echo))]
    fn new(
        py: Python<'_>,
        trust: &str,
        ca_pem: String,
        identity: Option<(String, String)>,
        handshake_timeout: f64,
        idle_timeout: f64,
        keep_idle: f64,
        suspect: f64,
        max_head_bytes: usize,
        stream_window: u32,
        connection_window: u32,
        useless_burst: u32,
        useless_per_second: u32,
        echo: &str,
    ) -> PyResult<Self> {
        let build = || {
            let trust = match trust {
                "system" => Trust::System { ca_pem },
                "only" => Trust::Only { ca_pem },
                "anybody" => Trust::Anybody,
                other => {
                    return Err(Error::new(
                        Kind::Misuse,
                        format!("trust is {other:?}; it must be system, only or anybody"),
                    ));
                }
            };
            let identity = identity.map(|(certificate_pem, key_pem)| Identity { certificate_pem, key_pem });
            let echo: Echo = serde_json::from_str(echo)
                .map_err(|error| Error::new(Kind::Config, format!("echo: {error}")))?;
            Ok(client::ClientConfig {
                origins: Arc::new(Origins::new(tls::client(&trust, identity.as_ref(), &[b"h3"])?)),
                handshake_timeout: seconds("handshake_timeout", handshake_timeout)?,
                idle_timeout: seconds("idle_timeout", idle_timeout)?,
                keep_idle: seconds("keep_idle", keep_idle)?,
                suspect: seconds("suspect", suspect)?,
                max_head_bytes,
                stream_window,
                connection_window,
                useless_burst,
                useless_per_second,
                echo: echo.settings(),
            })
        };
        Ok(Self { inner: build().map_err(|error| errors::to_py(py, &error))? })
    }
}

/// One HTTP/3 connection to a server.
#[pyclass(frozen, module = "headrace._engine")]
pub struct Connection {
    inner: ClientConnection,
}

#[pymethods]
impl Connection {
    /// Begins to connect; requests may be made at once. `name`: whose certificate the server must show.
    #[staticmethod]
    fn open(py: Python<'_>, config: &ClientConfig, host: String, port: u16, name: String) -> PyResult<Self> {
        let opened = ClientConnection::open(config.inner.clone(), Target { host, port, name });
        Ok(Self { inner: opened.map_err(|error| errors::to_py(py, &error))? })
    }

    /// Resolves when the connection is reached, or raises why it cannot be.
    #[pyo3(signature = (bridge))]
    fn wait_reached<'py>(
        &self,
        py: Python<'py>,
        bridge: Option<&Bound<'py, Bridge>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(py, bridge, NOTHING, |reply| self.inner.wait_reached(reply))
    }

    /// Sends a request. `body`: `None` when it comes by `Stream.send`. `record`: keep the times and sizes of
    /// the answer's DATA frames instead of their bytes. `abandon_after`: seconds without a reader after which
    /// the answer is stopped. `early`: it may be sent in early data, because it does no harm when it comes twice.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (verb, authority, path, headers, body, *, record, abandon_after, early))]
    fn request(
        &self,
        py: Python<'_>,
        verb: &str,
        authority: String,
        path: String,
        headers: Vec<(String, String)>,
        body: Option<&[u8]>,
        record: bool,
        abandon_after: Option<f64>,
        early: bool,
    ) -> PyResult<Stream> {
        let build = || {
            let bad = |error: Error| Error::new(Kind::BadRequest, error.detail);
            let (method, headers) =
                (method(verb).map_err(bad)?, convert::headers_from_py(&headers).map_err(bad)?);
            let head = RequestHead { method, scheme: "https".to_owned(), authority, path, headers };
            message::check_request(&head).map_err(|what| Error::new(Kind::BadRequest, what))?;
            let body = match body {
                Some(bytes) => RequestBody::Whole(Bytes::copy_from_slice(bytes)),
                None => RequestBody::Pieces,
            };
            let abandon_after = abandon_after.map(|given| seconds("abandon_after", given)).transpose()?;
            self.inner.request(
                head,
                body,
                Options { is_recorded: record, abandon_after, may_be_early: early },
            )
        };
        Ok(Stream { inner: build().map_err(|error: Error| errors::to_py(py, &error))? })
    }

    /// Closes the connection; its streams end with an error.
    fn close(&self) {
        self.inner.close();
    }

    /// Moves to a new socket, and so to the path that the system prefers now; streams go on.
    fn migrate(&self, py: Python<'_>) -> PyResult<()> {
        let migrate = || {
            let _on_runtime = client::runtime()?.enter();
            self.inner
                .inner()
                .ok_or_else(|| {
                    Error::new(
                        Kind::Misuse,
                        "the connection is not reached yet, or could not be; await wait_reached() first",
                    )
                })?
                .migrate()
        };
        migrate().map_err(|error: Error| errors::to_py(py, &error))
    }

    /// Whether it is reached, and not closed since.
    #[getter]
    fn is_open(&self) -> bool {
        self.inner.inner().is_some_and(|inner| inner.quic.close_reason().is_none())
    }

    /// Whether it takes requests, now or once it is reached.
    #[getter]
    fn is_usable(&self) -> bool {
        self.inner.is_usable()
    }

    /// How many streams have not ended, also those that wait for credit.
    #[getter]
    fn streams(&self) -> usize {
        self.inner.streams()
    }

    /// How many streams have no credit (MAX_STREAMS) yet.
    #[getter]
    fn waiting(&self) -> usize {
        self.inner.waiting()
    }

    /// `((host, port) of ours, (host, port) of the server)`, once it is reached.
    #[getter]
    fn addresses(&self) -> Option<((String, u16), (String, u16))> {
        let inner = self.inner.inner()?;
        let server = inner.quic.remote_address();
        let ours = inner.endpoint.local_addr().ok()?;
        // The socket is not bound to an address: the one from which the system would leave is the best that is known.
        let ip = inner.quic.local_ip().or(*inner.source()).unwrap_or_else(|| ours.ip());
        Some(((ip.to_string(), ours.port()), (server.ip().to_string(), server.port())))
    }

    /// What the transport knows of the path; `None` before the connection is reached.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(inner) = self.inner.inner() else { return Ok(None) };
        let stats = inner.quic.stats();
        let echo = inner.handoff.as_ref().map(|handoff| handoff.counters.counts()).unwrap_or_default();
        Ok(Some(typed_dict!(py, {
            rtt: inner.quic.rtt().as_secs_f64(),
            congestion_window: stats.path.cwnd,
            lost_packets: stats.path.lost_packets,
            path_changes: inner.path_changes.load(Ordering::Relaxed),
            sent_packets: stats.path.sent_packets,
            sent_bytes: stats.udp_tx.bytes,
            received_datagrams: stats.udp_rx.datagrams,
            received_bytes: stats.udp_rx.bytes,
            echo_copies: echo.copies,
            echo_copied_bytes: echo.copied_bytes,
            echo_repaired: echo.repaired,
            echo_doubtful: echo.doubtful,
        })))
    }

    fn __repr__(&self) -> String {
        match self.inner.inner() {
            Some(inner) => {
                let state = if inner.quic.close_reason().is_some() { "closed" } else { "open" };
                format!("<Connection {} {state}, {} streams>", inner.quic.remote_address(), self.streams())
            }
            None if self.inner.is_usable() => "<Connection connecting>".to_owned(),
            None => "<Connection failed>".to_owned(),
        }
    }
}

/// One request and its answer as it comes. Dropping it stops the answer.
#[pyclass(frozen, module = "headrace._engine")]
pub struct Stream {
    inner: ResponseStream,
}

#[pymethods]
impl Stream {
    /// Resolves when the stream has its credit (MAX_STREAMS) and is open, or has ended.
    #[pyo3(signature = (bridge))]
    fn wait_stream<'py>(
        &self,
        py: Python<'py>,
        bridge: Option<&Bound<'py, Bridge>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(py, bridge, NOTHING, |reply| {
            self.inner.wait_stream(reply);
            Ok(())
        })
    }

    /// Resolves when the head is there, or the stream has ended without one.
    #[pyo3(signature = (bridge))]
    fn wait_head<'py>(
        &self,
        py: Python<'py>,
        bridge: Option<&Bound<'py, Bridge>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(py, bridge, NOTHING, |reply| {
            self.inner.wait_head(reply);
            Ok(())
        })
    }

    /// Resolves when there are chunks to take, or the stream has ended.
    #[pyo3(signature = (bridge))]
    fn wait_more<'py>(
        &self,
        py: Python<'py>,
        bridge: Option<&Bound<'py, Bridge>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        call(py, bridge, NOTHING, |reply| {
            self.inner.wait_more(reply);
            Ok(())
        })
    }

    /// Sends a piece of the request's body; resolves when there is room for the next. Raises `ClosedError`
    /// when the server wants no more of it.
    #[pyo3(signature = (bridge, data))]
    fn send<'py>(
        &self,
        py: Python<'py>,
        bridge: Option<&Bound<'py, Bridge>>,
        data: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = Bytes::copy_from_slice(data);
        call(py, bridge, NOTHING, |reply| {
            self.inner.send(bytes, reply);
            Ok(())
        })
    }

    /// Says that the request's body is whole.
    fn finish(&self) {
        self.inner.finish();
    }

    /// `(status, headers, received at, in monotonic ns)`, once the head is there.
    #[getter]
    fn head<'py>(&self, py: Python<'py>) -> PyResult<Option<(u16, Bound<'py, PyList>, u64)>> {
        let Some((head, at_ns)) = self.inner.head() else { return Ok(None) };
        Ok(Some((head.status.as_u16(), convert::headers_to_py(py, &head.headers)?, at_ns)))
    }

    /// Takes all chunks that are there: `(received at, in monotonic ns, bytes, begins a DATA frame)`.
    fn take<'py>(&self, py: Python<'py>) -> Vec<(u64, Bound<'py, PyBytes>, bool)> {
        let chunks = self.inner.take();
        chunks.iter().map(|chunk| (chunk.at_ns, PyBytes::new(py, &chunk.bytes), chunk.is_first)).collect()
    }

    /// Takes all chunks that are there, and joins their bytes.
    fn take_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let chunks = self.inner.take();
        let length = chunks.iter().map(|chunk| chunk.bytes.len()).sum();
        PyBytes::new_with(py, length, |mut into: &mut [u8]| {
            for chunk in &chunks {
                let (here, rest) = into.split_at_mut(chunk.bytes.len());
                here.copy_from_slice(&chunk.bytes);
                into = rest;
            }
            Ok(())
        })
    }

    /// `(received at, in monotonic ns, bytes)` of each DATA frame so far, or of the first ones, where there are very
    /// many.
    fn arrivals(&self) -> Vec<(u64, u32)> {
        self.inner.arrivals()
    }

    /// `False` while the stream runs or has chunks to take, `True` after its end.
    ///
    /// Raises how the stream ended, unless that was with a whole answer.
    #[getter]
    fn ended(&self, py: Python<'_>) -> PyResult<bool> {
        match self.inner.end() {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(error)) => Err(errors::to_py(py, &error)),
        }
    }

    #[getter]
    fn trailers<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        self.inner.trailers().map(|trailers| convert::headers_to_py(py, &trailers)).transpose()
    }

    /// The request was sent in early data (0-RTT), and the server took it.
    #[getter]
    fn early_data(&self) -> bool {
        self.inner.is_early_data()
    }

    #[getter]
    fn stream_id(&self) -> Option<u64> {
        self.inner.stream_id()
    }

    /// Sends STOP_SENDING (H3_REQUEST_CANCELLED). Never waits.
    fn stop(&self) {
        self.inner.stop();
    }

    fn __repr__(&self) -> String {
        let state = match self.inner.end() {
            None => "open".to_owned(),
            Some(Ok(())) => "ended".to_owned(),
            Some(Err(error)) => error.kind.slug().to_owned(),
        };
        let id = self.inner.stream_id().map_or("-".to_owned(), |id| id.to_string());
        format!("<Stream {id} {state}>")
    }
}
