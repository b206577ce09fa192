//! Answers that are kept, and told again.

pub mod reader;
pub mod record;
