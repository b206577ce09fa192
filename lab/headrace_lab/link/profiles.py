"""What a network is like: delay, rate, loss, pauses; and seven named ones, with the sources of their numbers.

In: numbers, in the units that people use. Out: a checked `Profile`, and the plan of each direction as the
emulator reads it. A profile says nothing about when and where it is used.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace_lab.link import commands

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Profile:
    """A network between a client and a server. Up is from the client, down to the client.

    Raises `ConfigError` for numbers that no network can have."""

    name: str = "custom"
    source: str = ""
    """Where the numbers come from."""
    delay_ms: float = 0.0
    """One way: half of the round trip."""
    jitter_ms: float = 0.0
    """The delay varies evenly by up to this much in both directions; packets keep their order."""
    rate_mbit: float = 0.0
    """The rate down, in 10⁶ bits of IP packets a second; 0: unlimited."""
    rate_up_mbit: float | None = None
    """The rate up; `None`: the same as down."""
    queue_kb: float = 256.0
    """10³ bytes that may wait at the bottleneck, in each direction; what exceeds them is dropped."""
    loss: float = 0.0
    """Share of packets, 0 to 1, in each direction."""
    burst: float = 1.0
    """Mean length of a run of losses (Gilbert-Elliott); 1: each packet is lost or not by itself."""
    duplicate: float = 0.0
    """Share of packets that come twice."""
    reorder: float = 0.0
    """Share of packets that come `reorder_ms` later than their successors."""
    reorder_ms: float = 5.0
    mtu: int = 0
    """Longer IP packets vanish without an ICMP message; 0: the devices' 1500."""
    block_udp: bool = False
    drops_up: tuple[int, ...] = ()
    """Indices of packets that are dropped; the first packet is 0."""
    drops_down: tuple[int, ...] = ()
    pause_every_s: float = 0.0
    """Once in every such period nothing passes, for between `pause_min_ms` and `pause_max_ms`; packets
    wait in the queue meanwhile. 0: never."""
    pause_min_ms: float = 0.0
    pause_mean_ms: float = 0.0
    pause_max_ms: float = 0.0
    trace_down: Path | None = None
    """A Mahimahi trace, which replaces the rate: each line is a millisecond at which 1500 bytes may pass."""
    trace_up: Path | None = None
    script: tuple[dict[str, Any], ...] = field(default=())
    """Commands (`headrace_lab.link.commands`) with the time or packet before which they are carried out:
    `{"at_s": 2.0, "do": "outage", "seconds": 1}`, `{"before_down": 500, "do": "rebind_port"}`."""

    def __post_init__(self) -> None:
        def lies(name: str, low: float, high: float) -> bool:
            return commands.is_number(getattr(self, name), low, high)

        for name in SHARES:
            self._need(name, lies(name, 0, 1), "a share between 0 and 1")
        for name in AMOUNTS:
            is_left_out = name == "rate_up_mbit" and self.rate_up_mbit is None
            self._need(name, is_left_out or lies(name, 0, 1e9), "a number, 0 or more")
        self._need("burst", lies("burst", 1, 1e6), "a mean length of 1 or more")
        for name in ("drops_up", "drops_down"):
            numbers = getattr(self, name)
            self._need(name, all(type(each) is int and each >= 0 for each in numbers), "indices of packets")
        most = self.burst / (self.burst + 1) if self.burst > 1 else 1.0
        self._need("loss", self.loss <= most, f"at most {most:.2f} in bursts of {self.burst:g}")
        self._need("delay_ms", self.jitter_ms <= self.delay_ms, "at least jitter_ms")
        if self.pause_every_s:
            low, mean, high = self.pause_min_ms, self.pause_mean_ms, self.pause_max_ms
            ordered = low <= mean <= high <= self.pause_every_s * 1000 and (low < mean or low == high)
            self._need("pause_mean_ms", ordered, "between pause_min_ms and pause_max_ms")
        for step in self.script:
            commands.step(step, Profile.plans)

    def _need(self, name: str, is_right: bool, what: str) -> None:
        if not is_right:
            raise ConfigError(detail=f"{name} = {getattr(self, name)!r} of a link's profile must be {what}")

    @classmethod
    def named(cls, name: str) -> Profile:
        """Returns one of `PROFILES`. Raises `ConfigError`."""
        try:
            return PROFILES[name]
        except KeyError:
            raise ConfigError(
                detail=f"there is no link profile {name!r}; expected one of {', '.join(PROFILES)}"
            ) from None

    @classmethod
    def of(cls, given: Profile | str | dict[str, Any]) -> Profile:
        """Returns a profile that is given as it is, by its name, or by its fields. Raises `ConfigError`."""
        if isinstance(given, Profile):
            return given
        if isinstance(given, str):
            return cls.named(given)
        unknown = set(given) - {each.name for each in fields(cls)}
        if unknown:
            known = ", ".join(each.name for each in fields(cls))
            raise ConfigError(detail=f"a link's profile has no field {min(unknown)!r}; it has: {known}")
        return cls(**given)

    @classmethod
    def from_fields(cls, given: dict[str, Any]) -> Profile:
        """Returns a named profile (`profile`) with other fields, or one of fields alone. Raises
        `ConfigError`."""
        own = dict(given)
        base = cls.named(own.pop("profile")) if "profile" in own else cls()
        return cls.of(asdict(base) | own | ({"name": "custom"} if own else {}))

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields, as values for JSON."""
        traces = {name: str(getattr(self, name) or "") or None for name in ("trace_down", "trace_up")}
        return asdict(self) | traces

    @classmethod
    def plans(cls, given: Profile | str | dict[str, Any]) -> dict[str, Any]:
        """Returns what the emulator reads of a profile, for both directions. Raises `ConfigError`."""
        profile = cls.of(given)
        return {"up": profile.plan("up"), "down": profile.plan("down")}

    def plan(self, direction: str) -> dict[str, Any]:
        """Returns what the emulator reads, for `up` or `down`
        (`lab/crates/headrace-emulator/src/link/config.rs`)."""
        is_up = direction == "up"
        rate = self.rate_up_mbit if is_up and self.rate_up_mbit is not None else self.rate_mbit
        trace = self.trace_up if is_up else self.trace_down
        pauses = None
        if self.pause_every_s:
            times = {
                "every_ns": self.pause_every_s * 1000,
                "min_ns": self.pause_min_ms,
                "mean_ns": self.pause_mean_ms,
                "max_ns": self.pause_max_ms,
            }
            pauses = {name: round(time * MS) for name, time in times.items()}
        return {
            "delay_ns": round(self.delay_ms * MS),
            "jitter_ns": round(self.jitter_ms * MS),
            "rate_bits": round(rate * 1e6),
            "trace_ms": read_trace(trace) if trace else [],
            "queue_bytes": round(self.queue_kb * 1000),
            "loss": self.loss,
            "burst": self.burst,
            "drops": list(self.drops_up if is_up else self.drops_down),
            "duplicate": self.duplicate,
            "reorder": self.reorder,
            "reorder_ns": round(self.reorder_ms * MS),
            "mtu": self.mtu,
            "block_udp": self.block_udp,
            "pauses": pauses,
        }


SHARES = ("loss", "duplicate", "reorder")
AMOUNTS = (
    "delay_ms",
    "jitter_ms",
    "rate_mbit",
    "rate_up_mbit",
    "queue_kb",
    "reorder_ms",
    "mtu",
    "pause_every_s",
    "pause_min_ms",
    "pause_mean_ms",
    "pause_max_ms",
)


def read_trace(path: Path) -> list[int]:
    """Reads the times of a Mahimahi trace, in ms. Raises `ConfigError`."""
    try:
        lines = Path(path).read_text().split()
        times = [int(line) for line in lines]
    except OSError as error:
        raise ConfigError(detail=f"the trace {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(
            detail=f"{path}: expected a Mahimahi trace, a whole number of milliseconds on each line; {error}"
        ) from None
    if not times or times != sorted(times) or times[0] < 0 or times[-1] <= 0:
        raise ConfigError(detail=f"the times of the trace {path} must rise, and end above 0")
    return times


FIBER = Profile(
    name="fiber",
    source="Assumption: a home on fiber, its server in the same region.",
    delay_ms=5.0,
    jitter_ms=0.2,
    rate_mbit=300.0,
    rate_up_mbit=100.0,
    queue_kb=1000.0,
)
WIFI_GOOD = Profile(
    name="wifi-good",
    source="Assumption: one room from the access point; link-layer retries hide nearly all loss, and cost "
    "jitter.",
    delay_ms=10.0,
    jitter_ms=2.0,
    rate_mbit=100.0,
    rate_up_mbit=50.0,
    loss=0.001,
)
WIFI_BAD = Profile(
    name="wifi-bad",
    source="Assumption: the edge of a cell with interference. Loss comes in bursts; 3 % in bursts of three "
    "is the burst case that headrace's echo is measured by (docs/measurements.md).",
    delay_ms=20.0,
    jitter_ms=8.0,
    rate_mbit=15.0,
    rate_up_mbit=5.0,
    loss=0.03,
    burst=3.0,
)
LTE_DRIVING = Profile(
    name="lte-driving",
    source="Rates and pauses: Mahimahi's trace ATT-LTE-driving-2016 (4.6 and 1.9 Mbit/s; in 120 s 22 gaps "
    "over 200 ms, at most 1.1 s, 7.8 % of the time). Delay, jitter and queue: assumptions.",
    delay_ms=35.0,
    jitter_ms=8.0,
    rate_mbit=4.6,
    rate_up_mbit=1.9,
    queue_kb=600.0,
    loss=0.001,
    pause_every_s=120 / 22,
    pause_min_ms=200.0,
    pause_mean_ms=0.078 * 120_000 / 22,
    pause_max_ms=1100.0,
)
FIVE_G = Profile(
    name="5g",
    source="Delay and jitter: the Irish 5G dataset (Raca et al., MMSys 2020), ping p50 75 ms and p90 106 ms;"
    " loss in 178 of 3,272 seconds, here as one short pause in 18 s. Its p99 (335 ms) is the pauses' "
    "length. Rates: assumptions.",
    delay_ms=39.0,
    jitter_ms=15.0,
    rate_mbit=80.0,
    rate_up_mbit=20.0,
    queue_kb=1000.0,
    pause_every_s=3272 / 178,
    pause_min_ms=100.0,
    pause_mean_ms=200.0,
    pause_max_ms=335.0,
)
TRAIN = Profile(
    name="train",
    source="Pauses: Mahimahi's trace TMobile-UMTS-driving, downlink (in 928 s 165 gaps over 200 ms, 28 over "
    "1 s, at most 5.8 s, 13 % of the time), as the nearest recording of holes in the coverage. The "
    "rest: assumptions.",
    delay_ms=40.0,
    jitter_ms=15.0,
    rate_mbit=2.0,
    rate_up_mbit=0.95,
    queue_kb=600.0,
    loss=0.005,
    burst=2.0,
    pause_every_s=928 / 165,
    pause_min_ms=200.0,
    pause_mean_ms=0.13 * 928_000 / 165,
    pause_max_ms=5600.0,
)
SATELLITE = Profile(
    name="satellite",
    source="Delay: geostationary height, 35,786 km: up and down again is 239 ms each way at the speed of "
    "light, and more at the edge of the footprint and in the modems. The rest: assumptions.",
    delay_ms=300.0,
    jitter_ms=10.0,
    rate_mbit=20.0,
    rate_up_mbit=3.0,
    queue_kb=1500.0,
    loss=0.002,
    burst=2.0,
)

PROFILES: dict[str, Profile] = {
    profile.name: profile for profile in (FIBER, WIFI_GOOD, WIFI_BAD, LTE_DRIVING, FIVE_G, TRAIN, SATELLITE)
}
