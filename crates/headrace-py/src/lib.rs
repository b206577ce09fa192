//! `headrace._engine`: the seam between the engine and Python.
//!
//! In: a configuration as one JSON text, handles, commands. Out: awaitables, whole values, errors. It decides
//! nothing and has no defaults. No thread of the engine ever waits for the GIL (`bridge.rs`).

mod bridge;
mod client;
mod convert;
mod dialects;
mod errors;
mod exchange;
mod replay;
mod report;
mod server;
mod waiter;

use pyo3::prelude::*;

/// What this binary is: version, profile, and the pinned versions that decide what goes on the wire.
#[pyfunction]
fn build_info() -> Vec<(&'static str, &'static str)> {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    vec![("version", env!("CARGO_PKG_VERSION")), ("profile", profile)]
}

/// Nanoseconds of the clock by which the engine stamps what it receives; it is that of `time.monotonic_ns()`.
#[pyfunction]
fn monotonic_ns() -> u64 {
    headrace_net::client::monotonic_ns()
}

/// A development certificate: PEM texts of the leaf, its key, and the authority. The moments are Unix times.
#[pyfunction]
fn make_certificate(
    py: Python<'_>,
    names: Vec<String>,
    not_before: f64,
    not_after: f64,
) -> PyResult<(String, String, String)> {
    let make = || {
        let from = convert::seconds("not_before", not_before)?;
        headrace_net::tls::development::make(names, from, convert::seconds("not_after", not_after)?)
    };
    let made = make().map_err(|error| errors::to_py(py, &error))?;
    Ok((made.chain_pem, made.key_pem, made.ca_pem))
}

/// Closes every client connection. Called at the end of the process, so that no server goes on generating.
#[pyfunction]
fn close_connections(py: Python<'_>) {
    py.detach(headrace_net::client::network::close_all);
}

#[pymodule(gil_used = true)]
fn _engine(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(build_info, module)?)?;
    module.add_function(wrap_pyfunction!(monotonic_ns, module)?)?;
    module.add_function(wrap_pyfunction!(close_connections, module)?)?;
    module.add_function(wrap_pyfunction!(make_certificate, module)?)?;
    module.add_function(wrap_pyfunction!(errors::error_kinds, module)?)?;
    module.add_function(wrap_pyfunction!(dialects::rows, module)?)?;
    module.add_function(wrap_pyfunction!(dialects::dialects_of, module)?)?;
    module.add_function(wrap_pyfunction!(dialects::is_generation, module)?)?;
    module.add_function(wrap_pyfunction!(dialects::error_body, module)?)?;
    module.add_function(wrap_pyfunction!(dialects::is_last_event, module)?)?;
    module.add_class::<bridge::Bridge>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<exchange::Target>()?;
    module.add_class::<exchange::Exchange>()?;
    module.add_class::<exchange::Request>()?;
    module.add_class::<exchange::RelayRequest>()?;
    module.add_class::<replay::ReplayBudget>()?;
    module.add_class::<replay::ReplayBuffer>()?;
    module.add_class::<report::RelayReport>()?;
    module.add_class::<client::ClientConfig>()?;
    module.add_class::<client::Connection>()?;
    module.add_class::<client::Stream>()?;
    module.add_class::<waiter::Waiter>()?;
    Ok(())
}
