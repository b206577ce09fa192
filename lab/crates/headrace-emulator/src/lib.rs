//! An emulated network, for headrace's lab and its simulator.
//!
//! In: a plan for each direction, packets. Out: the packets, each when it is due, or not at all. It is not part
//! of the product: nothing in `crates/headrace-core`, `-net` or `-py` may depend on it, and it knows nothing of them.
//!
//! * [`network`]: what a bad network does to each packet, decided without a network; the simulator uses it, too
//! * [`link`]: the thread that reads packets, keeps the times and hands them on
//! * [`error`]: what can go wrong

pub mod error;
pub mod link;
pub mod network;

pub use error::Error;
