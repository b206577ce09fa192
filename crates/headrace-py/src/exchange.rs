//! The handler's end of one exchange, for Python.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use headrace_core::events::dialects::Dialect;
use headrace_core::{Error, Kind, json_fields};
use headrace_net::exchange::{self, Command, Phase};
use headrace_net::relay;
use headrace_net::replay::Reader;
use headrace_net::upstream::{self, UpstreamProtocol, UpstreamRequest};
use http::StatusCode;
use http::header::HeaderMap;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::bridge::{Bridge, Outcome};
use crate::convert::{seconds, status};
use crate::replay::ReplayBuffer;
use crate::{convert, errors};

/// What the client asked, but for the body.
#[pyclass(frozen, module = "headrace._engine")]
pub struct Request(Arc<exchange::Request>);

#[pymethods]
impl Request {
    #[getter]
    fn method(&self) -> &str {
        self.0.head.method.as_str()
    }

    #[getter]
    fn scheme(&self) -> &str {
        &self.0.head.scheme
    }

    #[getter]
    fn authority(&self) -> &str {
        &self.0.head.authority
    }

    /// The path and query, as the client sent them.
    #[getter]
    fn target(&self) -> &str {
        &self.0.head.path
    }

    /// The path without its query.
    #[getter]
    fn path(&self) -> &str {
        self.0.head.path.split('?').next().unwrap_or("")
    }

    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        convert::headers_to_py(py, &self.0.head.headers)
    }

    /// The first value of a field; `None` when the client did not send it.
    fn header(&self, name: &str) -> Option<String> {
        self.0.head.headers.get(name).map(convert::text)
    }

    #[getter]
    fn protocol(&self) -> &'static str {
        self.0.protocol.name()
    }

    #[getter]
    fn client(&self) -> (String, u16) {
        (self.0.client.ip().to_canonical().to_string(), self.0.client.port())
    }

    #[getter]
    fn early_data(&self) -> bool {
        self.0.is_early_data()
    }

    fn __repr__(&self) -> String {
        let head = &self.0.head;
        // Not the query: there may be a key in it.
        format!("<Request {} {} {}>", head.method, self.path(), self.0.protocol.name())
    }
}

/// Where a model server is.
#[pyclass(frozen, module = "headrace._engine")]
pub struct Target(pub upstream::Target);

#[pymethods]
impl Target {
    /// `protocol`: `auto`, `http1` or `http2`.
    #[new]
    fn new(py: Python<'_>, tls: bool, host: String, port: u16, protocol: &str) -> PyResult<Self> {
        let protocol = match protocol {
            "auto" => UpstreamProtocol::Auto,
            "http1" => UpstreamProtocol::Http1,
            "http2" => UpstreamProtocol::Http2,
            other => {
                let error = Error::new(
                    Kind::Misuse,
                    format!("protocol is {other:?}; it must be auto, http1 or http2"),
                );
                return Err(errors::to_py(py, &error));
            }
        };
        Ok(Self(upstream::Target { is_tls: tls, host, port, protocol }))
    }

    fn __repr__(&self) -> String {
        format!("<Target {}>", self.0.authority())
    }
}

/// What an upstream is to be asked, and how long to wait for it.
#[pyclass(frozen, module = "headrace._engine")]
pub struct RelayRequest(relay::RelayRequest);

#[pymethods]
impl RelayRequest {
    /// The client's request goes on as it came, but for the fields in `remove` and `set` and, unless it is
    /// `None`, the body.
    #[new]
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (
        request, target, path, *, remove, set, body, connect_timeout, head_timeout, idle_timeout, held_statuses,
        answer_headers
    ))]
    fn new(
        py: Python<'_>,
        request: &Request,
        target: &Target,
        path: String,
        remove: Vec<String>,
        set: Vec<(String, String)>,
        body: Option<&[u8]>,
        connect_timeout: f64,
        head_timeout: f64,
        idle_timeout: f64,
        held_statuses: Vec<(u16, u16)>,
        answer_headers: Vec<(String, String)>,
    ) -> PyResult<Self> {
        let build = || {
            let mut headers = request.0.head.headers.clone();
            for name in &remove {
                headers.remove(name);
            }
            for (name, value) in convert::headers_from_py(&set)? {
                if let Some(name) = name {
                    headers.insert(name, value);
                }
            }
            let upstream = UpstreamRequest {
                target: target.0.clone(),
                method: request.0.head.method.clone(),
                path,
                headers,
                connect_timeout: seconds("connect_timeout", connect_timeout)?,
                head_timeout: seconds("head_timeout", head_timeout)?,
            };
            Ok(Self(relay::RelayRequest {
                dialect: Dialect::of(&request.0.head.path),
                upstream,
                body: body.map(Bytes::copy_from_slice),
                idle_timeout: seconds("idle_timeout", idle_timeout)?,
                held_statuses,
                headers: convert::headers_from_py(&answer_headers)?,
            }))
        };
        build().map_err(|error| errors::to_py(py, &error))
    }

    fn __repr__(&self) -> String {
        let upstream = &self.0.upstream;
        let path = upstream.path.split('?').next().unwrap_or("");
        format!("<RelayRequest {} {} {path}>", upstream.method, upstream.target.authority())
    }
}

/// One request and its answer. Dropping it resets an answer that is not finished.
#[pyclass(frozen, module = "headrace._engine")]
pub struct Exchange {
    inner: exchange::Exchange,
    bridge: Py<Bridge>,
}

impl Exchange {
    /// The exchange, as the loop of this bridge gets it.
    pub fn to_py(
        py: Python<'_>,
        inner: exchange::Exchange,
        bridge: Py<Bridge>,
    ) -> PyResult<Bound<'_, PyAny>> {
        Ok(Bound::new(py, Self { inner, bridge })?.into_any())
    }

    fn call<'py, T: Send + 'static>(
        &self,
        py: Python<'py>,
        convert: fn(T) -> Outcome,
        command: impl FnOnce(headrace_net::reply::Reply<T>) -> Command,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.bridge.get().call(py, convert, |reply| self.inner.command(command(reply)))
    }
}

const NOTHING: fn(()) -> Outcome = |()| Outcome::Nothing;

#[pymethods]
impl Exchange {
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id
    }

    #[getter]
    fn request(&self) -> Request {
        Request(self.inner.request.clone())
    }

    /// `open`, `answering`, `relaying`, `finished` or `reset`.
    #[getter]
    fn phase(&self) -> &'static str {
        match self.inner.progress.phase() {
            Phase::Open => "open",
            Phase::Answering => "answering",
            Phase::Relaying => "relaying",
            Phase::Finished => "finished",
            Phase::Reset => "reset",
        }
    }

    #[getter]
    fn events(&self) -> u64 {
        self.inner.progress.events.load(Ordering::Relaxed)
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.inner.progress.bytes.load(Ordering::Relaxed)
    }

    /// Resolves with the whole body.
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(body) = self.inner.take_ready_body() {
            return self.bridge.get().ready(py, PyBytes::new(py, &body).into_any());
        }
        self.call(py, Outcome::Bytes, Command::Body)
    }

    /// Fields of a JSON body, which stays where it is.
    fn body_fields<'py>(&self, py: Python<'py>, names: Vec<String>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(body) = self.inner.take_ready_body() {
            let fields = json_fields::read(&body, &names);
            return self.bridge.get().ready(py, convert::fields_to_py(py, fields)?);
        }
        self.bridge.get().call(py, Outcome::Fields, |reply| self.inner.body_fields(names, reply))
    }

    /// Sends the head of an answer.
    fn respond<'py>(
        &self,
        py: Python<'py>,
        status: u16,
        headers: Vec<(String, String)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (status, headers) = head(py, status, &headers)?;
        self.call(py, NOTHING, |reply| Command::Respond { status, headers, reply })
    }

    /// Sends bytes as one DATA frame; resolves once they fit the stream's budget.
    fn send<'py>(&self, py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let data = Bytes::copy_from_slice(data);
        self.call(py, NOTHING, |reply| Command::Send { data, reply })
    }

    /// Ends the answer.
    #[pyo3(signature = (trailers=None))]
    fn finish<'py>(
        &self,
        py: Python<'py>,
        trailers: Option<Vec<(String, String)>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let trailers = trailers.map(|pairs| convert::headers_from_py(&pairs)).transpose();
        let trailers = trailers.map_err(|error| errors::to_py(py, &error))?;
        self.call(py, NOTHING, |reply| Command::Finish { trailers, reply })
    }

    /// Sends a whole answer.
    fn answer<'py>(
        &self,
        py: Python<'py>,
        status: u16,
        headers: Vec<(String, String)>,
        body: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        let (status, headers) = head(py, status, &headers)?;
        let body = Bytes::copy_from_slice(body);
        self.call(py, NOTHING, |reply| Command::Answer { status, headers, body, reply })
    }

    /// Breaks the answer off. Never waits; does nothing once the answer is over.
    fn reset(&self, code: u64) {
        // With a full queue it ends the same way, because the handle is dropped soon.
        let _ = self.inner.command(Command::Reset { code });
    }

    /// Relays an upstream's answer; resolves with a `RelayReport`.
    fn relay<'py>(&self, py: Python<'py>, request: &RelayRequest) -> PyResult<Bound<'py, PyAny>> {
        let request = Box::new(request.0.clone());
        self.call(py, Outcome::Report, |reply| Command::Relay { request, reply })
    }

    /// Whoever has the API key of this name owns the exchange from now on.
    fn own(&self, key_name: &str) {
        self.inner.own(key_name);
    }

    /// Whether the request came in early data, and the handshake is not complete: it may be a replay.
    #[getter]
    fn may_be_replay(&self) -> bool {
        self.inner.request.may_be_replay()
    }

    /// Resolves when the handshake is complete.
    fn handshake<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.bridge.get().call(py, NOTHING, |reply| {
            self.inner.handshake(reply);
            Ok(())
        })
    }

    /// Begins to relay an upstream's answer into a buffer; resolves with its `RelayReport`.
    fn relay_into<'py>(
        &self,
        py: Python<'py>,
        request: &RelayRequest,
        buffer: &ReplayBuffer,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.bridge.get().call(py, Outcome::Report, |reply| {
            relay::record::start(self.inner.worker(), request.0.clone(), buffer.0.clone(), reply);
            Ok(())
        })
    }

    /// Tells the buffered answer to the client, from its first byte; resolves with a `RelayReport`.
    fn replay<'py>(&self, py: Python<'py>, buffer: &ReplayBuffer) -> PyResult<Bound<'py, PyAny>> {
        let reader = Reader::join(&buffer.0);
        self.call(py, Outcome::Report, |reply| Command::Replay { reader, reply })
    }

    /// Resolves with `"stopped"` or `"lost"` when the client is gone.
    fn gone<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, Outcome::Gone, Command::Gone)
    }

    fn __repr__(&self) -> String {
        let kilobytes = self.bytes() as f64 / 1000.0;
        format!(
            "<Exchange {} {} {} {} events {kilobytes:.1} kB>",
            self.inner.id,
            self.phase().to_uppercase(),
            self.inner.request.protocol.name(),
            self.events(),
        )
    }
}

fn head(py: Python<'_>, code: u16, pairs: &[(String, String)]) -> PyResult<(StatusCode, HeaderMap)> {
    let build = || Ok((status(code)?, convert::headers_from_py(pairs)?));
    build().map_err(|error: Error| errors::to_py(py, &error))
}
