//! The congestion controllers that a configuration can name, as quinn takes them.
//!
//! In: a name. Out: what builds a controller for each path. The window of token streams is pure
//! (`headrace_core::recovery::congestion`); this adapts it to quinn.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use headrace_core::recovery::congestion::Window;
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{
    BbrConfig, Controller, ControllerFactory, ControllerMetrics, CubicConfig, NewRenoConfig,
};

use crate::config::Congestion;

pub type Factory = Arc<dyn ControllerFactory + Send + Sync>;

pub fn factory(congestion: Congestion) -> Factory {
    match congestion {
        Congestion::Bbr => Arc::new(BbrConfig::default()),
        Congestion::Cubic => Arc::new(CubicConfig::default()),
        Congestion::NewReno => Arc::new(NewRenoConfig::default()),
        Congestion::Steady => Arc::new(Steady),
    }
}

/// The window of token streams: it yields to queues, not to chance.
struct Steady;

impl ControllerFactory for Steady {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(SteadyController(Window::new(now, current_mtu)))
    }
}

#[derive(Clone)]
struct SteadyController(Window);

impl Controller for SteadyController {
    fn on_ack(&mut self, _: Instant, sent: Instant, bytes: u64, app_limited: bool, _: &RttEstimator) {
        self.0.handle_acked(sent, bytes, app_limited);
    }

    fn on_sent(&mut self, now: Instant, bytes: u64, _: u64) {
        self.0.handle_sent(now, bytes);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, _: Option<u64>) {
        self.0.handle_acks_end(now, in_flight, app_limited);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.0.handle_congestion(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.0.handle_datagram_size(new_mtu);
    }

    fn window(&self) -> u64 {
        self.0.bytes()
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.0.bytes();
        metrics.ssthresh = self.0.slow_start_ends();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        Window::initial()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
