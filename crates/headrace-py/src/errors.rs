//! Errors across the seam: the one place where an engine's error becomes a Python exception.

use headrace_core::{Error, Kind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The rows of the table of kinds: `(slug, side, retryable, status, h3_code, sentence)`.
#[pyfunction]
pub fn error_kinds() -> Vec<(&'static str, &'static str, bool, u16, u64, &'static str)> {
    Kind::ALL
        .iter()
        .map(|kind| {
            let side = kind.side().name();
            (kind.slug(), side, kind.retryable(), kind.status(), kind.h3_code(), kind.sentence())
        })
        .collect()
}

/// The exception of `headrace.errors` for this kind.
pub fn to_py(py: Python<'_>, error: &Error) -> PyErr {
    match exception(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(failed) => failed,
    }
}

pub fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    MAKE.import(py, "headrace.errors", "make")?.call1((error.kind.slug(), error.detail.as_ref()))
}
