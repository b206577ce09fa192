//! The key pair of the next handshake, made before somebody waits for it.
//!
//! Each end of a TLS 1.3 handshake makes a pair for this handshake alone (RFC 8446 §4.2.8); with X25519 that takes some
//! 35 µs of a first token. A thread that makes handshakes keeps one pair ready, in memory alone, and
//! makes the next one when nobody waits. Where none is ready, one is made when it is needed.

use std::cell::RefCell;

use rustls::crypto::ring::kx_group::X25519;
use rustls::crypto::{ActiveKeyExchange, SupportedKxGroup};
use rustls::{Error, NamedGroup};

thread_local! {
    static READY: RefCell<Option<Box<dyn ActiveKeyExchange>>> = const { RefCell::new(None) };
}

/// X25519, with the pair that is ready on this thread.
#[derive(Debug)]
pub struct Prepared;

impl SupportedKxGroup for Prepared {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        READY.take().map_or_else(|| X25519.start(), Ok)
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

/// Makes a pair for the next handshake of this thread, if there is none. A client does it while an answer is on its way
/// (`client/connect.rs`), and a worker once a second (`upstream/warm.rs`).
pub fn prepare() {
    READY.with_borrow_mut(|ready| {
        if ready.is_none() {
            // Where this fails, the handshake will say so.
            *ready = X25519.start().ok();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The public key would tell if a pair were used twice.
    #[test]
    fn each_handshake_has_a_pair_of_its_own() {
        let mut keys = Vec::new();
        for is_prepared in [false, true, true, false] {
            if is_prepared {
                prepare();
                prepare();
            }
            let ours = Prepared.start().expect("a pair");
            let theirs = X25519.start().expect("a pair");
            let (public, their_public) = (ours.pub_key().to_vec(), theirs.pub_key().to_vec());
            let secret = ours.complete(&their_public).expect("a secret");
            assert_eq!(secret.secret_bytes(), theirs.complete(&public).expect("a secret").secret_bytes());
            assert!(!keys.contains(&public));
            keys.push(public);
        }
    }
}
