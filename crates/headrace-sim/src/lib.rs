//! headrace's transport in virtual time: both ends and the network between them, in one thread, without sockets.
//!
//! # The model
//!
//! ```text
//!   Answers (answers.rs): requests, and tokens that are due at fixed times
//!      │                                        │
//!   Side: client (side.rs)                   Side: server          quinn-proto, as the product configures it
//!      │        ┌── Link to the server ──►      │
//!      └────────┤                               ├── Link (link.rs): delay, loss, order, copies, rate, outage
//!               └── Link to the client ◄────────┘
//!   Simulation (simulation.rs): the clock, a heap of what comes next, the client's address outside (NAT, moves)
//! ```
//!
//! Time is a number that jumps to the next event, so a run of minutes takes milliseconds, a gap of one round trip
//! is exactly one round trip, and a seed is a run that can be repeated. Computing takes no time at all: what is
//! counted is what the protocol costs, in round trips, packets and bytes.
//!
//! - [`measures`]: first token, stop, lost packets, changes of path, in round trips, beside what physics allows;
//!   `cargo run --release -p headrace-sim --example round_trips` prints them as a table.
//! - [`random_connection`]: the random life of one connection, and what must hold in each;
//!   `cargo run --release -p headrace-sim --example random_connections -- 0 100000` runs many.
//! - [`soak`]: hours of connections through one random network after the other, and what is held meanwhile;
//!   `cargo run --release -p headrace-sim --example soak`.
//! - [`radio`]: tokens over links whose rate changes and which pause, beside what the link itself allows;
//!   `cargo run --release -p headrace-sim --example traces` prints them as a table.
//! - [`Setup::set_controller`] takes another congestion controller, [`Simulation::set_repeater`] sends datagrams again:
//!   for experiments.
//! - [`packets`]: what can be read of datagrams without their keys.
//!
//! # What it is not
//!
//! - Not the product's I/O: no sockets, no HTTP/3 framing, no relay, no scheduling. The transport's configuration
//!   is the product's own (`headrace_net::server_transport`, `client_transport`), and so is the detector of
//!   silence (`headrace_core::recovery::silence`); TLS has a test certificate, and early data when asked for.
//! - Writes of one instant share packets, as they do when one task writes them all. In the product, they share
//!   packets when they are written before quinn's task runs.
//! - Not reproducible to the last bit in two places, because quinn takes no seed there: the keys of TLS (all
//!   lengths are fixed, so nothing else differs), and the phase in which quinn's BBR probes for bandwidth.
//! - Times measured here are lower bounds of times measured anywhere else.

mod answer;
pub mod answers;
mod chance;
pub mod experiments;
pub mod link;
pub mod packets;
pub mod setup;
pub mod side;
mod simulation;

pub use answer::{Answer, Shape};
pub use answers::Answers;
pub use chance::Chance;
pub use experiments::random_connection::{RandomConnection, random_connection};
pub use experiments::soak::{Soak, soak};
pub use experiments::{lossy, measures, radio};
pub use headrace_emulator::network::{Loss, Plan, Rate};
pub use link::{Link, ideal};
pub use setup::{CLIENT_ADDRESS, SERVER_ADDRESS, Setup, Tls};
pub use side::{Datagram, Frames, Role};
pub use simulation::{Departure, Held, Repeater, Sent, Simulation};
