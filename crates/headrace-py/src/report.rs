//! How a relay went, for Python. Durations are seconds.

use std::time::{Duration, UNIX_EPOCH};

use headrace_core::stats::Histogram;
use headrace_net::relay::report;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::convert::{self, typed_dict};
use crate::errors;

type Held<'py> = (Bound<'py, PyList>, Option<Bound<'py, PyBytes>>);

#[pyclass(frozen, module = "headrace._engine")]
pub struct RelayReport(report::RelayReport);

impl RelayReport {
    pub fn new(report: report::RelayReport) -> Self {
        Self(report)
    }
}

#[pymethods]
impl RelayReport {
    /// `done`, `stopped`, `lost`, `upstream_failed`, `timeout`, `cut`, `displaced` or `abandoned`.
    #[getter]
    fn cause(&self) -> &'static str {
        self.0.cause.name()
    }

    /// What went wrong, as an exception that was not raised.
    #[getter]
    fn error<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.error.as_ref().map(|error| errors::exception(py, error)).transpose()
    }

    /// Whether nothing was sent to the client, so that another upstream may be tried.
    #[getter]
    fn untouched(&self) -> bool {
        self.0.end == report::End::Untouched
    }

    /// The upstream's status.
    #[getter]
    fn status(&self) -> Option<u16> {
        self.0.status.map(|status| status.as_u16())
    }

    /// `sse`, `ndjson` or `raw`.
    #[getter]
    fn framing(&self) -> &'static str {
        self.0.format.name
    }

    /// The Unix time at which the relay began.
    #[getter]
    fn started(&self) -> f64 {
        self.0.started.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
    }

    /// The time until the head of the upstream's answer had come.
    #[getter]
    fn head(&self) -> Option<f64> {
        self.0.head.map(|time| time.as_secs_f64())
    }

    /// The time until the first event was with the transport.
    #[getter]
    fn ttft(&self) -> Option<f64> {
        self.0.first_event.map(|time| time.as_secs_f64())
    }

    #[getter]
    fn duration(&self) -> f64 {
        self.0.duration.as_secs_f64()
    }

    #[getter]
    fn events(&self) -> u64 {
        self.0.events
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    #[getter]
    fn upstream_reused(&self) -> bool {
        self.0.upstream_reused
    }

    /// How often the request was sent to the upstream.
    #[getter]
    fn runs(&self) -> u32 {
        self.0.runs
    }

    /// What an answer said whose status was held: its fields, and its body where it was short; else `None`.
    #[getter]
    fn held<'py>(&self, py: Python<'py>) -> PyResult<Option<Held<'py>>> {
        let Some(held) = &self.0.held else { return Ok(None) };
        let body = held.body.as_ref().map(|body| PyBytes::new(py, body));
        Ok(Some((convert::headers_to_py(py, &held.headers)?, body)))
    }

    /// The gaps between events, as `(upper edge, count)`.
    #[getter]
    fn gaps(&self) -> Vec<(f64, u32)> {
        buckets(&self.0.gaps)
    }

    /// The gap below which the share `q` (0 to 1) of all gaps lies, within 12 %.
    fn gap(&self, q: f64) -> f64 {
        self.0.gaps.quantile(q).as_secs_f64()
    }

    /// The times that events spent in the gateway, as `(upper edge, count)`.
    #[getter]
    fn holds(&self) -> Vec<(f64, u32)> {
        buckets(&self.0.holds)
    }

    /// The time in the gateway below which the share `q` (0 to 1) of all events lies, within 12 %.
    fn hold(&self, q: f64) -> f64 {
        self.0.holds.quantile(q).as_secs_f64()
    }

    /// What QUIC knows of the client's connection since it began; `None` over TCP.
    #[getter]
    fn transport<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(transport) = self.0.transport else { return Ok(None) };
        let echo = transport.echo;
        Ok(Some(typed_dict!(py, {
            rtt: transport.round_trip.as_secs_f64(),
            congestion_window: transport.congestion_window,
            lost_packets: transport.lost_packets,
            sent_packets: transport.sent_packets,
            echo_copies: echo.copies,
            echo_copied_bytes: echo.copied_bytes,
            echo_repaired: echo.repaired,
            echo_doubtful: echo.doubtful,
        })))
    }

    fn __repr__(&self) -> String {
        let status = self.0.status.map_or("-".to_owned(), |status| status.as_u16().to_string());
        format!(
            "<RelayReport {} {status} {} events {:.1} kB {:.0} ms>",
            self.0.cause.name(),
            self.0.events,
            self.0.bytes as f64 / 1000.0,
            self.0.duration.as_secs_f64() * 1000.0,
        )
    }
}

fn buckets(histogram: &Histogram) -> Vec<(f64, u32)> {
    histogram.buckets().map(|(edge, count)| (edge.as_secs_f64(), count)).collect()
}
