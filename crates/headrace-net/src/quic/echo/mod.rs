//! The echo: small datagrams are sent again before anybody knows that they are lost.
//!
//! A path's congestion controller ([`controller`]) decides by the rules of `headrace-core/recovery/echo`, hands what it
//! decided over ([`handoff`]), and the socket ([`socket`]) keeps the copies and sends them. [`counts`]: what it did.

pub mod controller;
pub mod counts;
pub mod handoff;
pub mod socket;

pub use handoff::{CopyHandoff, SendDecision};
