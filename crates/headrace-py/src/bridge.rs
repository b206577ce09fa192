//! From the engine's threads to one asyncio loop.
//!
//! In: results and new exchanges, pushed by any thread. Out: futures resolved and handlers called on the
//! loop's own thread. The engine's threads push to a queue and write to an eventfd only when the queue was
//! empty; the loop reads the eventfd and drains the queue in batches. So no thread of the engine ever waits
//! for the GIL, and a burst costs the loop one wake-up. The queue holds at most one entry per exchange and
//! per call that is awaited, all of which are bounded (`limits.max_exchanges`).

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use headrace_core::Error;
use headrace_core::json_fields::Fields;
use headrace_net::exchange;
use headrace_net::gone::Gone;
use headrace_net::relay::report;
use headrace_net::reply::Reply;
use headrace_net::upstream::Fetched;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyWeakrefMethods, PyWeakrefReference};

use crate::convert;
use crate::errors;
use crate::report::RelayReport;

/// How many entries are handled before the loop gets its turn.
const BATCH: usize = 512;

/// The result of a call; it becomes a Python value on the loop's thread.
pub enum Outcome {
    Nothing,
    Bytes(Bytes),
    Fields(Option<Fields>),
    Report(Box<report::RelayReport>),
    Gone(Gone),
    Count(usize),
    Fetched(Fetched),
}

enum Entry {
    Completed { id: u64, result: Result<Outcome, Error> },
    Exchange { handler: u64, exchange: exchange::Exchange },
}

/// The end that the engine's threads hold.
pub struct Queue {
    entries: Mutex<VecDeque<Entry>>,
    eventfd: OwnedFd,
    next: AtomicU64,
}

impl Queue {
    fn push(&self, entry: Entry) {
        let was_empty = {
            let mut entries = self.lock();
            entries.push_back(entry);
            entries.len() == 1
        };
        if was_empty {
            self.signal();
        }
    }

    pub fn push_exchange(&self, handler: u64, exchange: exchange::Exchange) {
        self.push(Entry::Exchange { handler, exchange });
    }

    fn signal(&self) {
        let one = 1u64;
        // SAFETY: the descriptor is ours and open, and 8 bytes are what an eventfd takes. It cannot be full.
        unsafe { libc::write(self.eventfd.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the Python object of an exchange, for the loop of this bridge.
type ToPy = fn(Python<'_>, exchange::Exchange, Py<Bridge>) -> PyResult<Bound<'_, PyAny>>;

struct TakesExchanges {
    callback: Py<PyAny>,
    to_py: ToPy,
}

/// One per asyncio loop: `loop.add_reader(bridge.fileno(), bridge.drain)`.
#[pyclass(frozen, module = "headrace._engine")]
pub struct Bridge {
    queue: Arc<Queue>,
    /// Futures that wait for a result, by the number of their call. Only the loop's thread touches them.
    futures: Mutex<HashMap<u64, Py<PyAny>>>,
    /// What takes new exchanges, by the number of their server.
    handlers: Mutex<HashMap<u64, TakesExchanges>>,
    /// Weak, because the loop holds the bridge by its reader, and both must be able to go.
    event_loop: Py<PyWeakrefReference>,
}

#[pymethods]
impl Bridge {
    #[new]
    fn new(event_loop: &Bound<'_, PyAny>) -> PyResult<Self> {
        // SAFETY: a plain system call; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(PyOSError::new_err(std::io::Error::last_os_error().to_string()));
        }
        // SAFETY: the descriptor was just made, and nobody else has it.
        let eventfd = unsafe { OwnedFd::from_raw_fd(fd) };
        let queue = Queue { entries: Mutex::default(), eventfd, next: AtomicU64::new(1) };
        Ok(Self {
            queue: Arc::new(queue),
            futures: Mutex::default(),
            handlers: Mutex::default(),
            event_loop: PyWeakrefReference::new(event_loop)?.unbind(),
        })
    }

    /// The descriptor that is readable when there is something to drain.
    fn fileno(&self) -> i32 {
        self.queue.eventfd.as_raw_fd()
    }

    /// Resolves futures and hands over exchanges. Call on the loop's thread. What one of them raises is told to the
    /// loop, and the others are not lost with it.
    fn drain(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, bridge) = (slf.py(), slf.get());
        let mut seen = 0u64;
        // SAFETY: the descriptor is ours and open, and `seen` has room for the 8 bytes.
        unsafe { libc::read(bridge.queue.eventfd.as_raw_fd(), (&raw mut seen).cast(), 8) };
        let (batch, is_more) = {
            let mut entries = bridge.queue.lock();
            let count = entries.len().min(BATCH);
            (entries.drain(..count).collect::<Vec<_>>(), !entries.is_empty())
        };
        if is_more {
            bridge.queue.signal();
        }
        for entry in batch {
            if let Err(error) = Self::handle(slf, entry) {
                bridge.tell(py, error)?;
            }
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        let (waiting, queued) = (lock(&self.futures).len(), self.queue.lock().len());
        format!("<Bridge {waiting} awaited, {queued} queued>")
    }
}

impl Bridge {
    fn handle(slf: &Bound<'_, Self>, entry: Entry) -> PyResult<()> {
        let (py, bridge) = (slf.py(), slf.get());
        match entry {
            Entry::Completed { id, result } => {
                let future = lock(&bridge.futures).remove(&id);
                future.map_or(Ok(()), |future| resolve(future.bind(py), result))
            }
            Entry::Exchange { handler, exchange } => {
                let found = lock(&bridge.handlers)
                    .get(&handler)
                    .map(|takes| (takes.callback.clone_ref(py), takes.to_py));
                // Without a handler the exchange is dropped here, which resets it.
                let Some((callback, to_py)) = found else { return Ok(()) };
                callback.call1(py, (to_py(py, exchange, slf.clone().unbind())?,)).map(drop)
            }
        }
    }

    /// Has the loop say what was raised where nobody waits for it.
    fn tell(&self, py: Python<'_>, error: PyErr) -> PyResult<()> {
        let Some(event_loop) = self.event_loop.bind(py).upgrade() else { return Ok(()) };
        let context = PyDict::new(py);
        context.set_item("message", "headrace: a result could not be handed over")?;
        context.set_item("exception", error.into_value(py))?;
        event_loop.call_method1(intern!(py, "call_exception_handler"), (context,)).map(drop)
    }

    /// Starts a call; the future resolves with what its reply is sent.
    pub fn call<'py, T: Send + 'static>(
        &self,
        py: Python<'py>,
        convert: fn(T) -> Outcome,
        start: impl FnOnce(Reply<T>) -> Result<(), Error>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let id = self.queue.next.fetch_add(1, Ordering::Relaxed);
        let future = self.future(py)?;
        lock(&self.futures).insert(id, future.clone().unbind());
        let queue = self.queue.clone();
        let reply = Reply::new(move |result: Result<T, Error>| {
            queue.push(Entry::Completed { id, result: result.map(convert) });
        });
        start(reply).map_err(|error| {
            lock(&self.futures).remove(&id);
            errors::to_py(py, &error)
        })?;
        Ok(future)
    }

    /// A future that is resolved already.
    pub fn ready<'py>(&self, py: Python<'py>, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let future = self.future(py)?;
        future.call_method1(intern!(py, "set_result"), (value,))?;
        Ok(future)
    }

    fn future<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let event_loop = self.event_loop.bind(py).upgrade();
        let event_loop = event_loop.ok_or_else(|| PyRuntimeError::new_err("the event loop is gone"))?;
        event_loop.call_method0(intern!(py, "create_future"))
    }

    /// Registers a handler of exchanges; the number goes to [`Queue::push_exchange`].
    pub fn add_handler(&self, callback: Py<PyAny>, to_py: ToPy) -> (u64, Arc<Queue>) {
        let number = self.queue.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.handlers).insert(number, TakesExchanges { callback, to_py });
        (number, self.queue.clone())
    }

    pub fn remove_handler(&self, number: u64) {
        lock(&self.handlers).remove(&number);
    }
}

fn resolve(future: &Bound<'_, PyAny>, result: Result<Outcome, Error>) -> PyResult<()> {
    let py = future.py();
    // It was cancelled meanwhile, and nobody waits.
    if future.call_method0(intern!(py, "done"))?.is_truthy()? {
        return Ok(());
    }
    let raised = match result.map(|outcome| to_py(py, outcome)) {
        Ok(Ok(value)) => return future.call_method1(intern!(py, "set_result"), (value,)).map(drop),
        Ok(Err(error)) => error.into_value(py).into_bound(py).into_any(),
        Err(error) => errors::exception(py, &error)?,
    };
    future.call_method1(intern!(py, "set_exception"), (raised,)).map(drop)
}

pub fn to_py(py: Python<'_>, outcome: Outcome) -> PyResult<Bound<'_, PyAny>> {
    Ok(match outcome {
        Outcome::Nothing => py.None().into_bound(py),
        Outcome::Bytes(bytes) => PyBytes::new(py, &bytes).into_any(),
        Outcome::Fields(fields) => convert::fields_to_py(py, fields)?,
        Outcome::Report(report) => Bound::new(py, RelayReport::new(*report))?.into_any(),
        Outcome::Gone(Gone::Stopped) => intern!(py, "stopped").clone().into_any(),
        Outcome::Gone(Gone::Lost) => intern!(py, "lost").clone().into_any(),
        Outcome::Count(count) => count.into_pyobject(py)?.into_any(),
        Outcome::Fetched(fetched) => {
            let headers = convert::headers_to_py(py, &fetched.headers)?;
            (fetched.status.as_u16(), headers, PyBytes::new(py, &fetched.body)).into_pyobject(py)?.into_any()
        }
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
