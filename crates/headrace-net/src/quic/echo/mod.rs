//! The echo: small datagrams are sent again before anybody knows that they are lost.
//!
//! A path's congestion controller ([`controller`]) decides by the rules of `headrace-core/recovery/echo` and hands
//! its decision over ([`handoff`]); the socket ([`socket`]) keeps the copies, and sends them. [`counts`] says what
//! was done.

pub mod controller;
pub mod counts;
pub mod handoff;
pub mod socket;

pub use handoff::{CopyHandoff, SendDecision};
