//! The congestion controllers that say which path a datagram is of.
//!
//! In: what quinn tells a path's congestion controller. Out: the same to the controller that is wrapped; and, for each
//! datagram, its path to the guard's socket. quinn calls the controller and then the socket, in one turn of one thread. A
//! validated path costs one store for each datagram.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use crate::quic::congestion::Factory;
use crate::quic::guard::{ConnectionPaths, Guard, PathState};

/// The same controllers, for the paths of one connection.
pub fn factory(guard: &Arc<Guard>, connection: Arc<ConnectionPaths>, inner: Factory) -> Factory {
    Arc::new(GuardFactory { guard: guard.clone(), connection, inner, has_first: AtomicBool::new(false) })
}

struct GuardFactory {
    guard: Arc<Guard>,
    connection: Arc<ConnectionPaths>,
    inner: Factory,
    /// The handshake's path was built; others are changes of it.
    has_first: AtomicBool,
}

impl ControllerFactory for GuardFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let is_first = !self.has_first.swap(true, Ordering::Relaxed);
        Box::new(GuardController {
            inner: self.inner.clone().build(now, current_mtu),
            guard: self.guard.clone(),
            path: PathState::new(self.connection.clone(), is_first),
            is_valid: false,
        })
    }
}

struct GuardController {
    inner: Box<dyn Controller>,
    guard: Arc<Guard>,
    path: Arc<PathState>,
    /// What the path knows, without a look.
    is_valid: bool,
}

impl GuardController {
    fn validate(&mut self) {
        self.path.validate(&mut self.guard.lock().addresses);
        self.is_valid = self.path.is_valid.load(Ordering::Relaxed);
    }
}

impl Drop for GuardController {
    fn drop(&mut self) {
        self.path.end(&mut self.guard.lock().addresses);
    }
}

impl Controller for GuardController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
        if !self.is_valid && self.path.is_first && self.path.connection.is_first_valid.load(Ordering::Relaxed)
        {
            self.validate();
        }
        if self.is_valid {
            self.guard.trusted.store(bytes, Ordering::Relaxed);
        } else {
            self.guard.trusted.store(0, Ordering::Relaxed);
            self.guard.lock().pending = Some((bytes, self.path.clone()));
        }
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        // On a path that was changed to, quinn hands these on only when its challenge was answered.
        if !self.is_valid && !self.path.is_first {
            self.validate();
        }
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent, lost_bytes);
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

    /// For another path: the peer's port changed.
    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: self.inner.clone_box(),
            guard: self.guard.clone(),
            path: PathState::new(self.path.connection.clone(), false),
            is_valid: false,
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    /// Whoever looks into a controller looks for the one within.
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.inner.clone_box().into_any()
    }
}
