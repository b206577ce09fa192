//! Sending small datagrams again: who marks them, who copies them, what is counted.

pub mod controller;
pub mod counts;
pub mod socket;
