//! The server, for Python.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use headrace_core::{Error, Kind};
use headrace_net::config::ServerConfig;
use headrace_net::exchange::Handler;
use headrace_net::server;
use headrace_net::upstream::UpstreamRequest;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::bridge::{Bridge, Outcome};
use crate::convert::{method, seconds, typed_dict};
use crate::exchange::{Exchange, Target};
use crate::{convert, errors};

/// A running server. Dropping it closes every connection.
#[pyclass(frozen, module = "headrace._engine")]
pub struct Server {
    inner: server::Server,
    bridge: Py<Bridge>,
    number: u64,
}

#[pymethods]
impl Server {
    /// Binds, and starts the workers; `on_exchange` is called with each exchange on the bridge's loop.
    #[staticmethod]
    fn start(
        py: Python<'_>,
        config_json: &str,
        bridge: Py<Bridge>,
        on_exchange: Py<PyAny>,
    ) -> PyResult<Self> {
        let config: ServerConfig = serde_json::from_str(config_json)
            .map_err(|error| errors::to_py(py, &Error::new(Kind::Config, error.to_string())))?;
        let (number, queue) = bridge.get().add_handler(on_exchange, Exchange::to_py);
        let handler = Handler::new(move |exchange| queue.push_exchange(number, exchange));
        match py.detach(|| server::Server::start(config, handler)) {
            Ok(inner) => Ok(Self { inner, bridge, number }),
            Err(error) => {
                bridge.get().remove_handler(number);
                Err(errors::to_py(py, &error))
            }
        }
    }

    /// Shows another certificate (PEM texts) from the next connection on.
    fn set_certificate(&self, py: Python<'_>, certificate_pem: &str, key_pem: &str) -> PyResult<()> {
        self.inner.set_certificate(certificate_pem, key_pem).map_err(|error| errors::to_py(py, &error))
    }

    #[getter]
    fn address(&self) -> (String, u16) {
        (self.inner.address.ip().to_string(), self.inner.address.port())
    }

    /// Whether the kernel delivers datagrams by connection ID.
    #[getter]
    fn steered(&self) -> bool {
        self.inner.is_steered()
    }

    /// Gauges and counts.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = &self.inner.shared.counters;
        let echo = counters.echo.counts();
        Ok(typed_dict!(py, {
            exchanges: counters.exchanges.load(Ordering::Relaxed),
            connections: counters.connections.load(Ordering::Relaxed),
            handshakes: counters.handshakes.load(Ordering::Relaxed),
            exchanges_total: counters.exchanges_total.load(Ordering::Relaxed),
            connections_total: counters.connections_total.load(Ordering::Relaxed),
            early_requests_total: counters.early_requests_total.load(Ordering::Relaxed),
            unknown_tickets_total: self.inner.unknown_tickets(),
            runs_total: counters.runs_total.load(Ordering::Relaxed),
            repeats_total: counters.repeats_total.load(Ordering::Relaxed),
            refused_total: counters.refused_total.load(Ordering::Relaxed),
            displaced_total: self.inner.shared.tables.displaced(),
            breaches_total: counters.breaches_total.load(Ordering::Relaxed),
            echo_copies_total: echo.copies,
            echo_copied_bytes_total: echo.copied_bytes,
            echo_repaired_total: echo.repaired,
            echo_doubtful_total: echo.doubtful,
            buffered_bytes: self.inner.shared.tables.bodies.held(),
            unread_growth_bytes: self.inner.shared.tables.grown(),
            pooled_upstreams: self.inner.pooled(),
        }))
    }

    /// Asks an upstream on the gateway's own behalf; resolves with `(status, headers, body)`.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (target, verb, path, headers, body, *, connect_timeout, head_timeout, max_bytes))]
    fn fetch<'py>(
        &self,
        py: Python<'py>,
        target: &Target,
        verb: &str,
        path: String,
        headers: Vec<(String, String)>,
        body: &[u8],
        connect_timeout: f64,
        head_timeout: f64,
        max_bytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let build = || {
            Ok(UpstreamRequest {
                target: target.0.clone(),
                method: method(verb)?,
                path,
                headers: convert::headers_from_py(&headers)?,
                connect_timeout: seconds("connect_timeout", connect_timeout)?,
                head_timeout: seconds("head_timeout", head_timeout)?,
            })
        };
        let request = build().map_err(|error: Error| errors::to_py(py, &error))?;
        let body = Bytes::copy_from_slice(body);
        self.bridge.get().call(py, Outcome::Fetched, |reply| {
            self.inner.fetch(request, body, max_bytes, reply);
            Ok(())
        })
    }

    /// Takes nothing new, waits at most `grace` seconds for what runs, tells what still runs, and closes; resolves with
    /// how many answers were cut.
    fn drain<'py>(&self, py: Python<'py>, grace: f64) -> PyResult<Bound<'py, PyAny>> {
        let grace = seconds("grace", grace).map_err(|error| errors::to_py(py, &error))?;
        self.bridge.get().call(py, Outcome::Count, |reply| {
            self.inner.drain(grace, reply);
            Ok(())
        })
    }

    /// Closes every connection at once, and waits for the workers.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
        self.bridge.get().remove_handler(self.number);
    }

    fn __repr__(&self) -> String {
        let counters = &self.inner.shared.counters;
        format!(
            "<Server {} {} exchanges {} connections>",
            self.inner.address,
            counters.exchanges.load(Ordering::Relaxed),
            counters.connections.load(Ordering::Relaxed),
        )
    }
}
