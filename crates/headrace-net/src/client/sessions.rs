//! What a client remembers of the servers it was connected to: session tickets, and the SETTINGS that came with
//! them.
//!
//! In: the server of a connection. Out: its TLS configuration, with the tickets of that server and no other, so that a
//! first request can leave in early data (0-RTT). All of it is in memory, and ends with the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headrace_core::{Error, Kind};
use quinn_proto::crypto::rustls::QuicClientConfig;
use rustls::client::Resumption;

/// How many servers are remembered; beyond this, any of them is forgotten.
const MAX_ORIGINS: usize = 1000;
/// How many sessions of one server are kept; rustls keeps up to eight tickets for each.
const SESSIONS: usize = 1;

/// The server of a connection: an alternative service's host and port may differ from the name that its certificate
/// must have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub host: String,
    pub port: u16,
    pub name: String,
}

/// What is remembered of one server.
pub struct Origin {
    pub tls: Arc<QuicClientConfig>,
    /// Its SETTINGS_MAX_FIELD_SECTION_SIZE; a request in early data must obey the one of the connection before (RFC
    /// 9114 §7.2.4.2).
    max_field_section_size: AtomicU64,
}

impl Origin {
    pub fn max_field_section_size(&self) -> u64 {
        self.max_field_section_size.load(Ordering::Relaxed)
    }

    pub fn note_settings(&self, max_field_section_size: Option<u64>) {
        self.max_field_section_size.store(max_field_section_size.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// All servers that are remembered.
pub struct Origins {
    template: rustls::ClientConfig,
    known: Mutex<HashMap<Target, Arc<Origin>>>,
}

impl Origins {
    /// `template`: a TLS client's configuration that offers `h3`.
    pub fn new(template: rustls::ClientConfig) -> Self {
        Self { template, known: Mutex::default() }
    }

    /// What is remembered of a server, or a new entry.
    ///
    /// # Errors
    /// [`Kind::Config`] when the configuration does not suit QUIC.
    pub fn find(&self, target: &Target) -> Result<Arc<Origin>, Error> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(origin) = known.get(target) {
            return Ok(origin.clone());
        }
        let mut tls = self.template.clone();
        tls.resumption = Resumption::in_memory_sessions(SESSIONS);
        tls.enable_early_data = true;
        let tls = QuicClientConfig::try_from(tls).map_err(|error| {
            Error::new(Kind::Config, format!("no TLS 1.3 cipher suite for QUIC: {error}"))
        })?;
        let origin =
            Arc::new(Origin { tls: Arc::new(tls), max_field_section_size: AtomicU64::new(u64::MAX) });
        if known.len() >= MAX_ORIGINS {
            let forgotten = known.keys().next().cloned();
            forgotten.map(|key| known.remove(&key));
        }
        known.insert(target.clone(), origin.clone());
        Ok(origin)
    }
}
