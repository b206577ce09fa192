//! The client's connections and streams, for Python.

use bytes::Bytes;
use headrace_core::http3::message::RequestHead;
use headrace_core::{Error, Kind};
use headrace_net::client::{self, ClientConfig, ClientConnection};
use headrace_net::client_stream::ResponseStream;
use headrace_net::tls::Trust;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::bridge::{Bridge, Outcome};
use crate::exchange::{method, seconds};
use crate::{errors, fields};

const NOTHING: fn(()) -> Outcome = |()| Outcome::Nothing;

/// One HTTP/3 connection to a server.
#[pyclass(frozen, module = "headrace._engine")]
pub struct Connection {
    inner: ClientConnection,
    bridge: Py<Bridge>,
}

impl Connection {
    pub fn new(inner: ClientConnection, bridge: Py<Bridge>) -> Self {
        Self { inner, bridge }
    }
}

#[pymethods]
impl Connection {
    /// Connects; resolves with a [`Connection`]. `trust`: `system`, `only` (the PEM text) or `anybody`.
    #[staticmethod]
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (bridge, host, port, *, trust, ca_pem, handshake_timeout, idle_timeout, max_head_bytes, stream_window, connection_window))]
    fn connect<'py>(
        py: Python<'py>,
        bridge: &Bound<'py, Bridge>,
        host: String,
        port: u16,
        trust: &str,
        ca_pem: String,
        handshake_timeout: f64,
        idle_timeout: f64,
        max_head_bytes: usize,
        stream_window: u32,
        connection_window: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let build = || {
            let trust = match trust {
                "system" => Trust::System { ca_pem },
                "only" => Trust::Only { ca_pem },
                "anybody" => Trust::Anybody,
                other => return Err(Error::new(Kind::Misuse, format!("{other:?} is nobody to trust"))),
            };
            Ok(ClientConfig {
                trust,
                handshake_timeout: seconds("handshake_timeout", handshake_timeout)?,
                idle_timeout: seconds("idle_timeout", idle_timeout)?,
                max_head_bytes,
                stream_window,
                connection_window,
            })
        };
        let start = |config: ClientConfig| {
            bridge.get().call(py, Outcome::Connected, |reply| {
                client::runtime()?.spawn(async move {
                    reply.send(ClientConnection::connect(&config, &host, port).await);
                });
                Ok(())
            })
        };
        start(build().map_err(|error| errors::to_py(py, &error))?)
    }

    /// Sends a request. `record`: keep the times and sizes of the answer's DATA frames instead of their
    /// bytes.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (verb, authority, path, headers, body, record))]
    fn request(
        &self,
        py: Python<'_>,
        verb: &str,
        authority: String,
        path: String,
        headers: Vec<(String, String)>,
        body: &[u8],
        record: bool,
    ) -> PyResult<Stream> {
        let build = || {
            let (method, headers) = (method(verb)?, fields::from_py(&headers)?);
            let head = RequestHead { method, scheme: "https".to_owned(), authority, path, headers };
            let _on_runtime = client::runtime()?.enter();
            Ok(self.inner.request(head, Bytes::copy_from_slice(body), record))
        };
        let inner = build().map_err(|error: Error| errors::to_py(py, &error))?;
        Ok(Stream { inner, bridge: self.bridge.clone_ref(py) })
    }

    /// Closes the connection; its streams end with an error.
    fn close(&self) {
        self.inner.close();
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.inner.quic().close_reason().is_some()
    }

    /// What the transport knows of the path: seconds, packets, bytes.
    fn stats(&self) -> Vec<(&'static str, f64)> {
        let quic = self.inner.quic();
        let stats = quic.stats();
        vec![
            ("rtt", quic.rtt().as_secs_f64()),
            ("congestion_window", stats.path.cwnd as f64),
            ("lost_packets", stats.path.lost_packets as f64),
            ("sent_packets", stats.path.sent_packets as f64),
            ("sent_bytes", stats.udp_tx.bytes as f64),
            ("received_datagrams", stats.udp_rx.datagrams as f64),
            ("received_bytes", stats.udp_rx.bytes as f64),
        ]
    }

    fn __repr__(&self) -> String {
        let state = if self.is_closed() { "closed" } else { "open" };
        format!("<Connection {} {state}>", self.inner.quic().remote_address())
    }
}

/// One request and its answer as it comes. Dropping it stops the answer.
#[pyclass(frozen, module = "headrace._engine")]
pub struct Stream {
    inner: ResponseStream,
    bridge: Py<Bridge>,
}

#[pymethods]
impl Stream {
    /// Resolves when the head is there, or the stream has ended without one.
    fn wait_head<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.bridge.get().call(py, NOTHING, |reply| {
            self.inner.wait_head(reply);
            Ok(())
        })
    }

    /// Resolves when there are chunks to take, or the stream has ended.
    fn wait_more<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.bridge.get().call(py, NOTHING, |reply| {
            self.inner.wait_more(reply);
            Ok(())
        })
    }

    /// `(status, headers, received at, in monotonic ns)`, once the head is there.
    #[getter]
    fn head<'py>(&self, py: Python<'py>) -> PyResult<Option<(u16, Bound<'py, PyList>, u64)>> {
        let Some((head, at_ns)) = self.inner.head() else { return Ok(None) };
        Ok(Some((head.status.as_u16(), fields::to_py(py, &head.headers)?, at_ns)))
    }

    /// All chunks that are there: `(received at, in monotonic ns, bytes, begins a DATA frame)`.
    fn take<'py>(&self, py: Python<'py>) -> Vec<(u64, Bound<'py, PyBytes>, bool)> {
        let chunks = self.inner.take();
        chunks.iter().map(|chunk| (chunk.at_ns, PyBytes::new(py, &chunk.bytes), chunk.is_first)).collect()
    }

    /// Of a recorded stream: `(received at, in monotonic ns, bytes)` of each DATA frame so far; forgets them.
    fn take_records(&self) -> Vec<(u64, u32)> {
        self.inner.take_records()
    }

    /// `False` while the stream runs or has chunks to take, `True` after its end.
    ///
    /// Raises how it ended, when that was not FIN after a whole answer.
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
        self.inner.trailers().map(|trailers| fields::to_py(py, &trailers)).transpose()
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
