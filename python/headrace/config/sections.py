"""The sections of the configuration: every setting, its default, its unit and its reason, once.

In: values. Out: sections that cannot be wrong. They must not know where the values came from (`load.py`), nor
what the engine reads of them (`engine.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from headrace import echo

KIB = 1024
MIB = 1024 * 1024

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86_400 * 30)]
Positive = Annotated[int, Field(gt=0)]
Size = Annotated[int, Field(ge=1024)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Listen(Section):
    """Where clients connect: one port, UDP for HTTP/3 and TCP for HTTP/2 and HTTP/1.1."""

    host: str = "127.0.0.1"
    """Address or name; loopback by default, so that nothing is open to a network that was not meant to be.
    `::` is every address, IPv4 too."""
    port: Port = 4433
    """0 lets the system choose."""
    workers: Annotated[int, Field(ge=0, le=128)] = 0
    """Threads that each own their connections; 0 is one per core, at most 8: beyond that, measure first."""
    congestion: Literal["steady", "bbr", "cubic", "newreno"] = "steady"
    """Congestion controller of HTTP/3. CUBIC and NewReno shrink to almost nothing under random loss, which is
    what mobile networks have; steady and BBR keep token streams flowing, and steady yields to queues."""
    steering: Literal["bpf", "forward"] = "bpf"
    """How a datagram finds its worker: by the kernel (BPF, falls back by itself), or always by forwarding."""
    alt_svc_max_age_s: Annotated[int, Field(ge=0)] = 86_400
    """How long clients that came over TCP may remember that HTTP/3 is here (RFC 7838)."""

    @property
    def worker_count(self) -> int:
        return self.workers or min(os.cpu_count() or 1, 8)


class Echo(Section):
    """Small datagrams are sent a second time, so that a lost one is repaired before anybody sees it; for the
    reasons see `headrace/echo.py` and docs/echo.md."""

    mode: echo.Mode = "auto"
    """`auto`: while a path is new or loses packets. `on`: always, but for a queue. `off`: never."""
    near_ms: Annotated[float, Field(ge=1, le=50)] = echo.NEAR_MS
    """From a datagram to its copy."""
    far_ms: Annotated[float, Field(ge=5, le=200)] = echo.FAR_MS
    """To its second copy, against bursts. A stream that is alone gets a third, after 45 ms."""
    first_s: Annotated[float, Field(ge=0, le=60)] = echo.FIRST_S
    """How long a path that is new gets copies; 3.5 s and 128 packets at least."""
    hold_s: Annotated[float, Field(gt=0, le=3600)] = echo.HOLD_S
    """How long copies go on after a loss."""
    max_extra_bytes_per_s: Annotated[int, Field(ge=8192)] = echo.MAX_EXTRA_BYTES_PER_S
    """What copies may add to one connection."""

    @model_validator(mode="after")
    def _check(self) -> Echo:
        if self.far_ms <= self.near_ms:
            raise ValueError("echo: far_ms must be larger than near_ms")
        return self


class Tls(Section):
    """The certificate. Without one, a development certificate is made, which nobody else trusts."""

    certificate: Path | None = None
    """PEM: the leaf first, then its intermediates. ECDSA fits into the first flight of a handshake, RSA
    chains may cost a round trip."""
    key: Path | None = None
    """PEM."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Tls:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together")
        return self


class Limits(Section):
    """Bounds that fit a machine with 1 GB of memory. What many connections may hold at worst is
    `max_connections x (connection_receive_window_bytes + connection_send_window_bytes)`, plus
    `max_buffered_bytes` and `idempotency.max_bytes`."""

    max_head_bytes: Size = 32 * KIB
    """A request's header fields, decoded, 32 bytes added for each (RFC 9114 §4.2.2). Larger: 431."""
    max_body_bytes: Positive = 32 * MIB
    """A request's body: long prompts and a few images. Larger: 413."""
    max_buffered_bytes: Positive = 256 * MIB
    """All bodies that are being read or wait for their answer, together. Full: 503."""
    max_event_bytes: Size = 256 * KIB
    """One SSE event or NDJSON line that is held until it is complete; a longer one leaves in pieces."""
    max_connections: Positive = 1000
    max_handshakes: Positive = 256
    """Handshakes at one time."""
    retry_above_handshakes: Annotated[int, Field(ge=0)] = 100
    """From so many handshakes on, a client must first show that its address is its own (Retry, RFC 9000
    §8.1.2). It costs a round trip, so not below."""
    max_tickets: Annotated[int, Field(ge=0)] = 20_000
    """Session tickets that are kept for clients who come back, each good for one first flight with early data
    (0-RTT); about 400 bytes each. 0: no early data."""
    handshake_buffer_bytes: Size = 16 * KIB
    """What one client may send before its handshake begins."""
    max_streams_per_connection: Positive = 100
    """Requests of one connection at one time: what HTTP/2 and HTTP/3 servers commonly allow."""
    max_exchanges: Positive = 4096
    """Requests of all connections at one time. More: 503."""
    cancel_burst: Positive = 1000
    """Requests that one connection may cancel at once; then `cancels_per_second`. People press stop,
    attackers press it a thousand times a second; a proxy before us carries many people."""
    cancels_per_second: Positive = 200
    stream_budget_bytes: Size = 256 * KIB
    """What a slow reader may have waiting; then its model server is not read any more."""
    stream_receive_window_bytes: Size = 256 * KIB
    """What one request may have sent ahead of being read (QUIC and HTTP/2 flow control)."""
    connection_receive_window_bytes: Size = 256 * KIB
    connection_send_window_bytes: Size = 256 * KIB
    """What is sent and not acknowledged; at 50 ms round trip this still allows 5 MB/s."""


class Timeouts(Section):
    """Seconds."""

    handshake_s: Seconds = 10
    request_s: Seconds = 30
    """For a request's head, and again for its body."""
    idle_s: Seconds = 30
    """A connection whose other side is silent for so long is lost. We ask (PING) at a third of it."""
    unused_s: Seconds = 120
    """A connection without a request for so long is closed."""
    stalled_reader_s: Seconds = 300
    """A client that takes nothing of its answer for so long is given up."""
    ticket_s: Annotated[float, Field(gt=0, le=86_400 * 7)] = 7200
    """How long a client may stay away and still come back with early data. RFC 8446 allows 7 days at most."""
    connect_s: Seconds = 5
    """To a model server."""
    first_byte_s: Seconds = 600
    """From the end of a request to the head of its answer: long prompts wait in queues. What the SDKs wait,
    too."""
    silence_s: Seconds = 600
    """Between two pieces of an answer."""
    leave_s: Annotated[float, Field(ge=0, le=86400)] = 0
    """How long new connections are still taken after SIGTERM, while `/readyz` says 503: for balancers that
    need a moment to look elsewhere."""
    drain_s: Seconds = 30
    """How long answers may run on after that."""


def _model_names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Upstream(Section):
    """A model server."""

    url: str
    """`http://host:port` or `https://host`; a path is put before every request's."""
    name: str = ""
    """For logs and errors; the URL's host and port by default."""
    models: Annotated[list[str], BeforeValidator(_model_names)] = []
    """What it serves; `*` matches any run of characters. Empty: what its `/v1/models` says."""
    paths: list[str] = ["/"]
    """Beginnings of the paths it serves, in whole segments: `/v1` is `/v1` and what lies below it. No other
    path reaches it."""
    api_key_env: str | None = None
    """The environment variable that holds its key. Keys do not belong into files."""
    protocol: Literal["auto", "http1", "http2"] = "auto"
    """HTTP/2 without TLS must be asked for."""
    health_path: str = "/v1/models"
    """Asked every `health_interval_s`; every status below 500 is healthy."""
    health_interval_s: Seconds = 5

    @model_validator(mode="after")
    def _check(self) -> Upstream:
        try:
            url = urlsplit(self.url)
            port = url.port
        except ValueError as error:
            raise ValueError(f"url: {error}") from None
        if url.scheme not in ("http", "https") or not url.hostname:
            # Behind the last @: before it may stand a password.
            got = self.url.rpartition("@")[2]
            raise ValueError(f"url: expected http://host:port or https://host, got {got!r}")
        if url.query or url.fragment or url.username:
            raise ValueError("url: a query, a fragment or a user have no place here")
        if self.api_key_env is not None:
            key_of_environment(self.api_key_env)
        if not all(path.startswith("/") for path in [*self.paths, self.health_path]):
            raise ValueError("paths and health_path begin with /")
        if not self.name:
            object.__setattr__(self, "name", f"{url.hostname}:{port}" if port else url.hostname)
        return self


def key_of_environment(name: str) -> str:
    """The API key in an environment variable, without the line feed that files and shells leave at its end.

    Raises `ValueError` that names the variable, and nothing of what it holds.
    """
    key = os.environ.get(name, "").strip()
    if not key:
        raise ValueError(f"api_key_env: the environment variable {name} is not set")
    if not all("!" <= char <= "~" for char in key):
        raise ValueError(
            f"api_key_env: the environment variable {name} holds what a key cannot have: "
            "a blank, a line end, or a character that is not ASCII"
        )
    return key


Policy = Literal["run", "wait", "refuse"]


class EarlyData(Section):
    """What is done with a request in the first flight of a client that comes back (0-RTT, RFC 8470). Somebody
    on the way could send it a second time; a ticket is good once, so that no process takes it twice.
    `run`: at once, a round trip earlier. `wait`: after the handshake. `refuse`: answer 425, upon which a
    client sends it again; browsers show it to people."""

    safe: Policy = "run"
    """GET, HEAD, OPTIONS."""
    idempotent: Policy = "run"
    """POST with an `Idempotency-Key`: a second one joins the answer of the first."""
    other: Policy = "wait"
    """All others: most completions."""
    routes: dict[Annotated[str, Field(pattern="^/")], Policy] = {}
    """Beginnings of paths, in whole segments, before the three above; the longest wins."""


class Idempotency(Section):
    """Answers to requests with an `Idempotency-Key`: a second request with the same key is told the answer of
    the first."""

    max_bytes: Positive = 64 * MIB
    """All such answers that run or ended a moment ago, together. Full: 503; and of those that run, only what
    their clients have not been told yet is kept."""
    answer_bytes: Size = MIB
    """What is kept of one: some 4,000 tokens. Of a longer one nobody can have the beginning again."""
    kept_s: Seconds = 60
    """How long one is kept after its end. One that broke off, and one that SDKs ask for again by themselves
    (408, 425, 429, 5xx), is not kept: its key begins anew."""
    lost_s: Seconds = 10
    """How long one is generated on when its client was lost, for the client to come back with the same key. A
    client that stops ends it at once."""


class UpstreamPool(Section):
    """Connections to model servers that are kept open."""

    idle_per_upstream: Annotated[int, Field(ge=0)] = 64
    """For each worker: as many as answers end at one time."""
    idle_s: Seconds = 4
    """Shorter than what model servers keep: llama.cpp and uvicorn close after 5 s."""
    warm_s: Annotated[float, Field(ge=0, le=86_400)] = 60
    """For so long after their use connections are kept ready, so that a first token pays for no handshake:
    as many as requests ran at one time, shared out among the workers, at least one each; those that were
    closed are opened again. 0: none."""
    ca_file: Path | None = None
    """PEM: certificates to trust beside the system's."""
    max_head_bytes: Size = 64 * KIB


class Auth(Section):
    """Who may ask. Without keys: everybody."""

    keys: list[str] = []
    """`name:sha256:hex`, as `headrace key new` prints it: the key itself is nowhere."""

    @model_validator(mode="after")
    def _check(self) -> Auth:
        for entry in self.keys:
            name, _, digest = entry.partition(":sha256:")
            if not name or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
                raise ValueError(
                    "keys: expected name:sha256:<64 hex digits>, as `headrace key new` prints it"
                )
        return self


class Log(Section):
    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    access: bool = True
    """A line for each request."""
    max_waiting_bytes: Size = MIB
    """What may wait for whoever reads the log: some 5,000 lines. More is dropped, and counted in a line."""


class Local(Section):
    """The local model, served when there is no upstream."""

    model: Path | None = None
    """A GGUF file; without one, SmolLM2-135M-Instruct of `headrace model install`."""
    parallel: Annotated[int, Field(gt=0, le=256)] = 4
    """Answers at one time (llama.cpp's slots)."""
    context: Positive = 2048
    """Tokens of each slot: prompt and answer."""
    threads: Annotated[int, Field(ge=0)] = 0
    """0: one less than there are cores. llama.cpp's threads wait for each other by spinning: with one on
    every core, gaps between tokens grow several times as long as soon as anything else runs, the gateway for
    one."""
