//! The link emulator, for Python: `headrace.lab`'s, in a process of its own.

use headrace_core::{Error, Kind};
use headrace_net::link;
use headrace_net::link::report::Answer;
use pyo3::prelude::*;

use crate::errors;

/// A link between two ends.
#[pyclass(frozen, module = "headrace._engine")]
pub struct Link(link::Link);

#[pymethods]
impl Link {
    /// Makes the ends: two TUN devices, or UDP sockets.
    #[new]
    fn new(py: Python<'_>, config_json: &str) -> PyResult<Self> {
        let opened = parse(config_json).and_then(|config| py.detach(|| link::Link::open(config)));
        opened.map(Self).map_err(|error| errors::to_py(py, &error))
    }

    /// Begins to carry packets; where a UDP relay listens.
    fn start(&self, py: Python<'_>) -> PyResult<Option<(String, u16)>> {
        self.0.start().map_err(|error| errors::to_py(py, &error))?;
        Ok(self.0.address.map(|address| (address.ip().to_string(), address.port())))
    }

    /// Carries out a command; the answer, both as JSON.
    fn command(&self, py: Python<'_>, command_json: &str) -> PyResult<String> {
        let answer = parse(command_json).and_then(|command| py.detach(|| self.0.command(command)));
        text(py, answer)
    }

    /// Ends it; the report, as JSON.
    fn stop(&self, py: Python<'_>) -> PyResult<String> {
        let answer = py.detach(|| self.0.stop());
        text(py, answer)
    }
}

fn parse<T: serde::de::DeserializeOwned>(json: &str) -> Result<T, Error> {
    serde_json::from_str(json).map_err(|error| Error::new(Kind::Config, error.to_string()))
}

fn text(py: Python<'_>, answer: Result<Answer, Error>) -> PyResult<String> {
    let written = answer.and_then(|answer| {
        serde_json::to_string(&answer).map_err(|error| Error::new(Kind::Internal, error.to_string()))
    });
    written.map_err(|error| errors::to_py(py, &error))
}
