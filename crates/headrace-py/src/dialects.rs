//! The table of API dialects, for Python (`headrace/events/dialects.py`).

use headrace_core::events::dialects::errors::Refusal;
use headrace_core::events::dialects::marks::LastEvent;
use headrace_core::events::dialects::{self, DIALECTS, Dialect};
use headrace_core::events::formats::FORMATS;
use headrace_core::{Error, Kind};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::typed_dict;
use crate::errors;

/// The rows, in the table's order.
#[pyfunction]
#[pyo3(name = "dialects")]
pub fn rows(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let row = |dialect: &'static Dialect| {
        Ok(typed_dict!(py, {
            name: dialect.name,
            generates: dialect.generates,
            paths: dialect.paths,
            key_fields: dialect.key_fields,
            key_queries: dialect.key_queries,
            formats: dialect.formats,
            last: dialect.last.iter().map(ToString::to_string).collect::<Vec<_>>(),
            words: dialect.last.iter().map(|mark| mark.word()).collect::<Vec<_>>(),
            texts: dialect.texts,
        }))
    };
    DIALECTS.iter().map(row).collect()
}

/// Names of the dialects that have a path, or a target; the first is the one it is taken for.
#[pyfunction]
pub fn dialects_of(target: &str) -> Vec<&'static str> {
    Dialect::all_of(target).into_iter().map(|dialect| dialect.name).collect()
}

/// Whether the answer to a POST there is generated.
#[pyfunction]
pub fn is_generation(target: &str) -> bool {
    dialects::generates(target)
}

/// A whole JSON body that tells an error in the words of the API at this path.
#[pyfunction]
#[pyo3(signature = (target, status, code, message, param=None))]
pub fn error_body(target: &str, status: u16, code: &str, message: &str, param: Option<&str>) -> Vec<u8> {
    let body = (Dialect::of(target).errors.body)(&Refusal { status, code, message, param });
    (body + "\n").into_bytes()
}

/// Whether an event, with its format's framing, is its answer's last.
#[pyfunction]
pub fn is_last_event(py: Python<'_>, dialect: &str, format: &str, event: &[u8]) -> PyResult<bool> {
    let dialect = DIALECTS.iter().find(|row| row.name == dialect);
    let format = FORMATS.iter().find(|row| row.name == format);
    let (Some(dialect), Some(format)) = (dialect, format) else {
        return Err(errors::to_py(py, &Error::new(Kind::Misuse, "no such dialect, or no such format")));
    };
    Ok(LastEvent::new(dialect.last, format).is(event))
}
