//! What a transport does about loss, delay and change on a path.
//!
//! * [`congestion`]: how much may be on its way; [`delay`]: whether a queue stands on the path; [`pace`]: what a thin
//!   flow may send while its path pauses
//! * [`echo`]: what is sent twice, and when
//! * [`silence`]: when the silence of a token stream is worth a probe
//! * [`address`]: where a client is for certain

pub mod address;
pub mod congestion;
pub mod delay;
pub mod echo;
pub mod pace;
pub mod silence;
