//! Values across the seam: header fields, which Python has as a list of pairs of `str` (Latin-1, as ASGI and WSGI
//! have them); fields of a JSON body, which it has as a dict; statuses, methods and times.

use std::time::Duration;

use headrace_core::json_fields::{Fields, Value};
use headrace_core::{Error, Kind, fields};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyString};

/// A dictionary whose keys and types the stub names (`_engine.pyi`, its `TypedDict`s).
macro_rules! typed_dict {
    ($py:expr, { $($name:ident: $value:expr,)* }) => {{
        let dict = pyo3::types::PyDict::new($py);
        $(dict.set_item(pyo3::intern!($py, stringify!($name)), $value)?;)*
        dict
    }};
}

pub(crate) use typed_dict;

/// Header fields of Python, checked.
///
/// # Errors
/// [`Kind::Misuse`] that names the field.
pub fn headers_from_py(pairs: &[(String, String)]) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::with_capacity(pairs.len());
    for (name, value) in pairs {
        let (name, value) = (self::name(name)?, self::value(name, value)?);
        headers.append(name, value);
    }
    Ok(headers)
}

pub fn name(name: &str) -> Result<HeaderName, Error> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
        Error::new(
            Kind::Misuse,
            format!("{name:?} is not the name of a header field: it must be a token (RFC 9110 §5.6.2)"),
        )
    })
}

fn value(name: &str, value: &str) -> Result<HeaderValue, Error> {
    // Not what it is: it may be a key.
    let bad = || {
        let why = "a control character, a character beyond Latin-1, or white space at an end";
        Error::new(Kind::Misuse, format!("the value of {name} holds what none may: {why}"))
    };
    let bytes: Option<Vec<u8>> = value.chars().map(|c| u8::try_from(c as u32).ok()).collect();
    let bytes = bytes.filter(|bytes| fields::is_valid_value(bytes)).ok_or_else(bad)?;
    HeaderValue::from_bytes(&bytes).map_err(|_| bad())
}

pub fn headers_to_py<'py>(py: Python<'py>, headers: &HeaderMap) -> PyResult<Bound<'py, PyList>> {
    let pairs = headers.iter().map(|(name, value)| (PyString::intern(py, name.as_str()), text(value)));
    PyList::new(py, pairs.collect::<Vec<_>>())
}

pub fn text(value: &HeaderValue) -> String {
    value.as_bytes().iter().map(|&byte| char::from(byte)).collect()
}

/// Texts as `str`, truth values as `bool`, all else as `None`; no dict for what is not a JSON object.
pub fn fields_to_py(py: Python<'_>, fields: Option<Fields>) -> PyResult<Bound<'_, PyAny>> {
    let Some(fields) = fields else { return Ok(py.None().into_bound(py)) };
    let dict = PyDict::new(py);
    for (name, value) in fields {
        match value {
            Value::Text(text) => dict.set_item(name, text)?,
            Value::Bool(value) => dict.set_item(name, PyBool::new(py, value))?,
            Value::Other => dict.set_item(name, py.None())?,
        }
    }
    Ok(dict.into_any())
}

pub fn status(code: u16) -> Result<StatusCode, Error> {
    StatusCode::from_u16(code)
        .map_err(|_| Error::new(Kind::Misuse, format!("{code} is not an HTTP status; it must be 100 to 999")))
}

pub fn seconds(name: &str, value: f64) -> Result<Duration, Error> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        Error::new(Kind::Misuse, format!("{name} is {value}; it must be a number of seconds, not negative"))
    })
}

pub fn method(name: &str) -> Result<Method, Error> {
    Method::from_bytes(name.as_bytes()).map_err(|_| {
        Error::new(
            Kind::Misuse,
            format!("{name:?} is not an HTTP method: it must be a token (RFC 9110 §5.6.2)"),
        )
    })
}
