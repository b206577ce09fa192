//! What a transport does about loss, delay and change on a path.
//!
//! * [`congestion`]: how much may be on its way; [`delay`]: whether a queue stands on the path; [`pace`]: what a thin
//!   flow may send while its path pauses
//! * [`echo`]: what is sent twice, and when
//! * [`presence`]: whether the other side is still there
//! * [`silence`]: when the silence of a token stream is worth a probe
//! * [`amplification`]: what may be sent to an address that may be somebody else's
//! * [`address`]: where a client is for certain

pub mod address;
pub mod amplification;
pub mod congestion;
pub mod delay;
pub mod echo;
pub mod pace;
pub mod presence;
pub mod silence;
