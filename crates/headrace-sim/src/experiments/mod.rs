//! What is done with simulations: counting in round trips, random networks, lossy paths.

pub mod lossy;
pub mod measures;
pub mod random_connection;
pub mod soak;
