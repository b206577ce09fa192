//! The congestion controllers that decide which datagrams are copied.
//!
//! In: what quinn tells a path's congestion controller: packets sent, acknowledged, lost. Out: the same to the
//! controller that is wrapped, and copies to the handoff (`handoff.rs`). A path that needs no copies costs a few
//! comparisons a packet.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use headrace_core::recovery::echo::path::{Counted, Path};
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use crate::quic::congestion::Factory;
use crate::quic::echo::counts::Counters;
use crate::quic::echo::handoff::{CopyHandoff, Network, PendingCopies};

/// How many later packets must arrive before a packet counts as lost. It is large, because the copy of a packet may
/// come behind several later ones: what decides is time (RFC 9002 §6.1.2).
pub const PACKET_THRESHOLD: u32 = 32;

/// The same controllers, which also say what is copied.
pub fn factory(handoff: &Arc<CopyHandoff>, inner: Factory) -> Factory {
    Arc::new(EchoFactory { inner, handoff: handoff.clone() })
}

struct EchoFactory {
    inner: Factory,
    handoff: Arc<CopyHandoff>,
}

impl ControllerFactory for EchoFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = self.inner.clone().build(now, current_mtu);
        Box::new(EchoController::new(inner, self.handoff.clone(), Arc::default(), now, current_mtu))
    }
}

/// A controller, and what its path has shown.
struct EchoController {
    inner: Box<dyn Controller>,
    handoff: Arc<CopyHandoff>,
    path: Path,
    network: Arc<Network>,
    is_told: bool,
    /// What is counted of this connection.
    counters: Arc<Counters>,
    /// What of the path's counts is in the counters already.
    counted: Counted,
    /// The size of acknowledged packets, smoothed.
    packet_bytes: u64,
    now: Instant,
}

impl EchoController {
    fn new(
        inner: Box<dyn Controller>,
        handoff: Arc<CopyHandoff>,
        counters: Arc<Counters>,
        now: Instant,
        current_mtu: u16,
    ) -> Self {
        let path = Path::new(handoff.settings, now, handoff.is_client());
        let (network, packet_bytes) = (Arc::default(), current_mtu.into());
        let counted = path.counted;
        Self { inner, handoff, path, network, is_told: false, counters, counted, packet_bytes, now }
    }

    fn count(&mut self) {
        let Counted { repaired, doubtful } = self.path.counted;
        let (repaired, doubtful) = (repaired - self.counted.repaired, doubtful - self.counted.doubtful);
        if repaired + doubtful == 0 {
            return;
        }
        self.counted = self.path.counted;
        for counters in [&self.counters, &self.handoff.counters] {
            counters.count_repaired(repaired);
            counters.count_doubtful(doubtful);
        }
    }
}

impl Drop for EchoController {
    fn drop(&mut self) {
        if let (Some(&address), Some(known)) = (self.network.address.get(), self.path.known()) {
            self.handoff.remember(self.now, address, known);
        }
    }
}

impl Controller for EchoController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
        self.now = now;
        if !self.is_told
            && let Some(known) = self.network.known.get()
        {
            self.is_told = true;
            if let Some(known) = known {
                self.path.handle_known(*known);
            }
        }
        let copies = self.path.handle_sent(now, bytes);
        if !copies.is_none() || copies.is_unvalidated {
            let (network, counters) = (self.network.clone(), self.counters.clone());
            self.handoff.put(PendingCopies { now, bytes, copies, network, counters });
        }
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
        self.packet_bytes = (self.packet_bytes * 7 + bytes).div_ceil(8);
        self.path.handle_acked(now, sent);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
        self.path.handle_acks_end(now, app_limited);
        self.count();
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent, lost_bytes);
        // Without bytes it is a router's mark (ECN-CE), not a loss.
        let packets = lost_bytes.div_ceil(self.packet_bytes.max(1));
        self.path.handle_lost(now, sent, packets.min(u32::MAX.into()) as u32);
        self.count();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    /// quinn clones the controller for another path, of which nothing is known yet: the peer's port changed.
    fn clone_box(&self) -> Box<dyn Controller> {
        let packet_bytes = self.packet_bytes.min(u16::MAX.into()) as u16;
        let (inner, counters) = (self.inner.clone_box(), self.counters.clone());
        Box::new(Self::new(inner, self.handoff.clone(), counters, self.now, packet_bytes))
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// The counters of the connection that has this controller; `None`: it has no echo.
pub fn counters(controller: Box<dyn Controller>) -> Option<Arc<Counters>> {
    let controller = controller.into_any().downcast::<EchoController>().ok()?;
    Some(controller.counters.clone())
}
