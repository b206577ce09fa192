//! When the silence of a token stream is worth a probe.
//!
//! In: the times at which something came, and the time now. Out: when to send something that the peer must
//! acknowledge. A NAT that forgot the client's address loses everything on its way to the client, and the
//! server cannot know the new address before the client sends: a client that only listens would wait for the
//! transport's keep-alive. So it sends a probe once a live stream has been silent for several of its usual gaps,
//! another one after twice that, and so on, a few times. A model that thinks for minutes costs a handful of packets.

/// A silence of so many usual gaps is worth a probe.
const GAPS: u64 = 4;
/// The silence that is waited for stays within these bounds, in nanoseconds: tokens of a burst must not make every
/// pause worth a probe, and slow streams must not make an outage long.
const MIN_NS: u64 = 50_000_000;
const MAX_NS: u64 = 200_000_000;
/// How many probes are sent in one silence; then the keep-alive is enough.
const MAX_PROBES: u32 = 5;
/// The share of a new gap in the mean: 1/8, as that of RTT samples (RFC 9002 §5.3).
const SHIFT: u32 = 3;

/// The gaps of what one connection receives.
#[derive(Clone, Copy, Debug, Default)]
pub struct SilenceProbe {
    last_ns: Option<u64>,
    gap_ns: u64,
    probes: u32,
}

impl SilenceProbe {
    /// Notes that something came.
    pub fn note_arrival(&mut self, now_ns: u64) {
        if let Some(last) = self.last_ns {
            let gap = now_ns.saturating_sub(last).min(MAX_NS);
            self.gap_ns =
                if self.gap_ns == 0 { gap } else { self.gap_ns - (self.gap_ns >> SHIFT) + (gap >> SHIFT) };
        }
        self.last_ns = Some(now_ns);
        self.probes = 0;
    }

    /// When the next probe is due; `None` before anything came, and after the last probe of one silence.
    pub fn due_ns(&self) -> Option<u64> {
        let silence = (self.gap_ns * GAPS).clamp(MIN_NS, MAX_NS);
        let waits = silence * ((1 << (self.probes + 1)) - 1);
        self.last_ns.filter(|_| self.probes < MAX_PROBES).map(|last| last + waits)
    }

    pub fn note_probe(&mut self) {
        self.probes += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn after(gap: u64, count: u64) -> SilenceProbe {
        let mut probe = SilenceProbe::default();
        (0..count).for_each(|number| probe.note_arrival(number * gap));
        probe
    }

    #[test]
    fn nothing_is_asked_before_anything_came() {
        assert_eq!(SilenceProbe::default().due_ns(), None);
    }

    #[test]
    fn it_asks_after_four_gaps_within_bounds() {
        assert_eq!(after(20 * MS, 100).due_ns(), Some(99 * 20 * MS + 80 * MS));
        assert_eq!(after(MS, 100).due_ns(), Some(99 * MS + 50 * MS));
        assert_eq!(after(5000 * MS, 100).due_ns(), Some(99 * 5000 * MS + 200 * MS));
    }

    #[test]
    fn it_asks_less_and_less_often_and_then_no_more() {
        let mut probe = after(20 * MS, 100);
        let last = 99 * 20 * MS;
        for waits in [80, 240, 560, 1200, 2480] {
            assert_eq!(probe.due_ns(), Some(last + waits * MS));
            probe.note_probe();
        }
        assert_eq!(probe.due_ns(), None);
        probe.note_arrival(last + 3000 * MS);
        assert!(probe.due_ns().is_some());
    }
}
