//! `headrace_lab._emulator`: the seam between the emulator and Python. It decides nothing.
//!
//! In: a configuration and commands, as JSON. Out: answers, as JSON; errors. `headrace_lab.link.process` is its only
//! user: a process of its own, so that nothing Python does delays a packet.

use headrace_emulator::Error;
use headrace_emulator::link;
use headrace_emulator::link::report::Answer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// A link between two ends.
#[pyclass(frozen, module = "headrace_lab._emulator")]
struct Link(link::Link);

#[pymethods]
impl Link {
    /// Makes the ends: two TUN devices, or UDP sockets.
    #[new]
    fn new(py: Python<'_>, config_json: &str) -> PyResult<Self> {
        let opened = parse(config_json).and_then(|config| py.detach(|| link::Link::open(config)));
        opened.map(Self).map_err(to_py)
    }

    /// Begins to carry packets; returns where a UDP relay listens.
    fn start(&self) -> PyResult<Option<(String, u16)>> {
        self.0.start().map_err(to_py)?;
        Ok(self.0.address.map(|address| (address.ip().to_string(), address.port())))
    }

    /// Carries out a command; returns the answer. Both are JSON.
    fn command(&self, py: Python<'_>, command_json: &str) -> PyResult<String> {
        let answer = parse(command_json).and_then(|command| py.detach(|| self.0.command(command)));
        text(answer)
    }

    /// Ends the link; returns the report, as JSON.
    fn stop(&self, py: Python<'_>) -> PyResult<String> {
        text(py.detach(|| self.0.stop()))
    }
}

fn parse<T: serde::de::DeserializeOwned>(json: &str) -> Result<T, Error> {
    serde_json::from_str(json).map_err(|error| Error::Config(error.to_string()))
}

fn text(answer: Result<Answer, Error>) -> PyResult<String> {
    let written = answer.and_then(|answer| {
        serde_json::to_string(&answer).map_err(|error| Error::Internal(error.to_string()))
    });
    written.map_err(to_py)
}

/// The one place where an error of the emulator becomes a Python exception.
fn to_py(error: Error) -> PyErr {
    match error {
        Error::Config(_) => PyValueError::new_err(error.to_string()),
        Error::Misuse(_) | Error::Internal(_) => PyRuntimeError::new_err(error.to_string()),
    }
}

#[pymodule(gil_used = true)]
fn _emulator(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Link>()
}
