//! What is done with simulations: counting in round trips, random networks, lossy paths, links that pause.

pub mod lossy;
pub mod measures;
pub mod radio;
pub mod random_connection;
pub mod soak;
