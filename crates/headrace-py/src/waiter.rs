//! The answer to one call, for a thread that waits for it.
//!
//! It is for code without a loop what a [`Bridge`](crate::bridge::Bridge) is for asyncio: `result()` gives the GIL
//! away, and blocks until the engine has answered.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use headrace_core::{Error, Kind};
use headrace_net::reply::Reply;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::bridge::{Bridge, Outcome, to_py};
use crate::convert::seconds;
use crate::errors;

/// How often a waiting thread looks for signals: Ctrl-C takes no longer.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

#[pyclass(frozen, module = "headrace._engine")]
pub struct Waiter {
    receiver: Mutex<Receiver<Result<Outcome, Error>>>,
}

#[pymethods]
impl Waiter {
    /// Waits for the result. Raises `TimeoutError` after `timeout` seconds, or the error of the call. It can be called
    /// again after a timeout.
    #[pyo3(signature = (timeout = None))]
    fn result<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let wait = timeout.map(|given| seconds("timeout", given)).transpose();
        let deadline = wait.map_err(|error| errors::to_py(py, &error))?;
        // A deadline further away than the clock can say never comes.
        let deadline = deadline.and_then(|wait| Instant::now().checked_add(wait));
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let step = left.map_or(SIGNAL_CHECK, |left| left.min(SIGNAL_CHECK));
            let received = py.detach(|| match self.receiver.lock() {
                Ok(receiver) => receiver.recv_timeout(step),
                Err(_) => Err(RecvTimeoutError::Disconnected),
            });
            match received {
                Ok(Ok(outcome)) => return to_py(py, outcome),
                Ok(Err(error)) => return Err(errors::to_py(py, &error)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(errors::to_py(
                        py,
                        &Error::new(Kind::Misuse, "the result was taken already; keep what result() returns"),
                    ));
                }
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            }
            if left.is_some_and(|left| left <= step) {
                return Err(PyTimeoutError::new_err(()));
            }
        }
    }

    fn __repr__(&self) -> String {
        "<Waiter>".to_owned()
    }
}

/// Starts a call: with a bridge a future of its loop, else a [`Waiter`].
pub fn call<'py, T: Send + 'static>(
    py: Python<'py>,
    bridge: Option<&Bound<'py, Bridge>>,
    convert: fn(T) -> Outcome,
    start: impl FnOnce(Reply<T>) -> Result<(), Error>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(bridge) = bridge {
        return bridge.get().call(py, convert, start);
    }
    let (sender, receiver) = sync_channel(1);
    let reply = Reply::new(move |result: Result<T, Error>| {
        let _ = sender.send(result.map(convert));
    });
    start(reply).map_err(|error| errors::to_py(py, &error))?;
    Ok(Bound::new(py, Waiter { receiver: Mutex::new(receiver) })?.into_any())
}
