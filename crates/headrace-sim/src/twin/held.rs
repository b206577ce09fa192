//! What a twin holds at one moment, to see that it stays within bounds.

use headrace_core::recovery::echo::queue::Queue;
use quinn_proto::Dir;

use super::Twin;

/// Counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Both sides' connections.
    pub connections: usize,
    /// Streams that send or are open, both sides', control streams among them.
    pub streams: usize,
    /// Copies that wait for their time.
    pub copies: usize,
    /// Networks that the server's echo remembers.
    pub networks: usize,
    /// Addresses of handshakes that the server's echo counts.
    pub addresses: usize,
    /// Datagrams on their way, and tokens that are due.
    pub events: usize,
}

impl Held {
    /// The most of each.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        Self {
            connections: self.connections.max(other.connections),
            streams: self.streams.max(other.streams),
            copies: self.copies.max(other.copies),
            networks: self.networks.max(other.networks),
            addresses: self.addresses.max(other.addresses),
            events: self.events.max(other.events),
        }
    }
}

impl Twin {
    pub fn held(&mut self) -> Held {
        let (networks, addresses) = self.server.held();
        let copies = self.echoes.iter().map(Queue::len).sum();
        let mut held = Held { copies, networks, addresses, events: self.events.len(), ..Held::default() };
        for side in [&mut self.client, &mut self.server] {
            for handle in side.handles() {
                held.connections += 1;
                let Some(connection) = side.connection_mut(handle) else { continue };
                let streams = connection.streams();
                held.streams += streams.send_streams() + streams.remote_open_streams(Dir::Bi) as usize;
            }
        }
        held
    }
}
