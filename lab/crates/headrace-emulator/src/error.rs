//! What can go wrong in an emulator.
//!
//! In: what was seen. Out: a sentence, and whether the configuration, the caller or the emulator itself is to blame.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The configuration or a command is wrong, or the machine cannot do what it asks for.
    Config(String),
    /// The call is not possible in this state.
    Misuse(String),
    /// A bug in the emulator.
    Internal(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(seen) | Self::Misuse(seen) => f.write_str(seen),
            Self::Internal(seen) => write!(f, "a bug in the emulator: {seen}"),
        }
    }
}

impl std::error::Error for Error {}
