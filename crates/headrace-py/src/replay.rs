//! Answers that are kept and told again, for Python.

use std::sync::Arc;

use bytes::Bytes;
use headrace_core::replay::{End, Record};
use headrace_net::replay;
use pyo3::prelude::*;

use crate::convert::seconds;
use crate::errors;

/// What all kept answers may hold together.
#[pyclass(frozen, module = "headrace._engine")]
pub struct ReplayBudget(Arc<replay::Budget>);

#[pymethods]
impl ReplayBudget {
    #[new]
    #[pyo3(signature = (*, max_bytes))]
    fn new(max_bytes: usize) -> Self {
        Self(Arc::new(replay::Budget::new(max_bytes)))
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn __repr__(&self) -> String {
        format!("<ReplayBudget {} bytes>", self.bytes())
    }
}

/// An answer that is relayed once and told to any number of clients.
#[pyclass(frozen, module = "headrace._engine")]
pub struct ReplayBuffer(pub Arc<replay::Buffer>);

#[pymethods]
impl ReplayBuffer {
    #[new]
    #[pyo3(signature = (budget, body, *, max_bytes, max_unread, grace))]
    fn new(
        py: Python<'_>,
        budget: &ReplayBudget,
        body: &[u8],
        max_bytes: usize,
        max_unread: usize,
        grace: f64,
    ) -> PyResult<Self> {
        let grace = seconds("grace", grace).map_err(|error| errors::to_py(py, &error))?;
        let (budget, body) = (budget.0.clone(), Bytes::copy_from_slice(body));
        Ok(Self(Arc::new(replay::Buffer::new(budget, max_bytes, max_unread, grace, body))))
    }

    /// Ends an answer that will have no more; does nothing once it has ended.
    fn close(&self) {
        self.0.close();
    }

    #[getter]
    fn ended(&self) -> bool {
        self.0.look(|record| record.end().is_some())
    }

    /// The status of its head; `None` before it is there.
    #[getter]
    fn status(&self) -> Option<u16> {
        self.0.look(|record| record.head().map(|(status, _)| status.as_u16()))
    }

    /// Whether it came to its own end.
    #[getter]
    fn finished(&self) -> bool {
        self.0.look(|record| matches!(record.end(), Some(End::Finished(_))))
    }

    /// Whether it broke off, or is about to.
    #[getter]
    fn failed(&self) -> bool {
        self.0.has_failed()
    }

    /// Whether everything since its first byte is kept.
    #[getter]
    fn whole(&self) -> bool {
        self.0.look(Record::is_whole)
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.0.look(Record::bytes)
    }

    #[getter]
    fn readers(&self) -> usize {
        self.0.readers()
    }

    fn __repr__(&self) -> String {
        let state = if self.ended() { "ended" } else { "open" };
        format!("<ReplayBuffer {state} {} bytes, {} readers>", self.bytes(), self.readers())
    }
}
