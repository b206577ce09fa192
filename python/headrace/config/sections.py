"""The sections of the configuration: every setting, its default, its unit and its reason, once.

In: values. Out: sections that cannot be wrong. They must not know where the values came from (`load.py`), nor
what the engine reads of them (`engine.py`).
"""

from __future__ import annotations

import os
import re
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
    """A section: no further keys, no change after it was made."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Listen(Section):
    """Where clients connect: one port, UDP for HTTP/3 and TCP for HTTP/2 and HTTP/1.1."""

    host: str = "127.0.0.1"
    """An address or a name. The default is loopback, so that nothing is open to a network by mistake. `::` is
    every address, of IPv4 too."""
    port: Port = 4433
    """UDP and TCP. 0 lets the system choose a free one."""
    workers: Annotated[int, Field(ge=0, le=128)] = 0
    """Threads, each of which owns its connections. 0 is one for each core, and at most 8: measure before you
    set more."""
    congestion: Literal["steady", "bbr", "cubic", "newreno"] = "steady"
    """Congestion controller of HTTP/3. CUBIC and NewReno shrink to almost nothing under random loss, which is
    what mobile networks have; steady and BBR keep token streams flowing, and steady yields to queues."""
    steering: Literal["bpf", "forward"] = "bpf"
    """How a datagram finds its worker: the kernel delivers it (`bpf`, which falls back to `forward` by
    itself), or the worker that receives it hands it on (`forward`)."""
    alt_svc_max_age_s: Annotated[int, Field(ge=0)] = 86_400
    """How long a client that came over TCP may remember that this port speaks HTTP/3 (RFC 7838)."""

    @property
    def worker_count(self) -> int:
        return self.workers or min(os.cpu_count() or 1, 8)


class Echo(Section):
    """Small datagrams are sent a second time, so that the loss of one is repaired before anybody sees it. The
    page on the echo in `docs` has the reasons."""

    mode: echo.Mode = "auto"
    """When copies are sent. `auto`: while a path is new or loses packets. `on`: always, unless a queue has
    built up. `off`: never."""
    near_ms: Annotated[float, Field(ge=1, le=50)] = echo.NEAR_MS
    """The time from a datagram to its copy."""
    far_ms: Annotated[float, Field(ge=5, le=200)] = echo.FAR_MS
    """The time from a datagram to its second copy, against bursts of losses. A stream that is alone gets a
    third copy, after 45 ms."""
    first_s: Annotated[float, Field(ge=0, le=60)] = echo.FIRST_S
    """How long copies are sent on a path that is new: at least 3.5 s and 128 packets."""
    hold_s: Annotated[float, Field(gt=0, le=3600)] = echo.HOLD_S
    """How long copies go on after a loss."""
    max_extra_bytes_per_s: Annotated[int, Field(ge=8192)] = echo.MAX_EXTRA_BYTES_PER_S
    """How much copies may add to one connection."""

    @model_validator(mode="after")
    def _check(self) -> Echo:
        if self.far_ms <= self.near_ms:
            raise ValueError(
                f"far_ms: expected more than near_ms, which is {self.near_ms:g}; got {self.far_ms:g}"
            )
        return self


class Tls(Section):
    """The certificate. Without one, a development certificate is made, which clients do not trust by
    themselves."""

    certificate: Path | None = None
    """A PEM file: the leaf first, then its intermediates. A chain of ECDSA certificates fits into the first
    flight of a handshake; one of RSA may cost a round trip."""
    key: Path | None = None
    """A PEM file with the certificate's private key."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Tls:
        if (self.certificate is None) != (self.key is None):
            given, missing = ("key", "certificate") if self.certificate is None else ("certificate", "key")
            raise ValueError(f"{given} is set and {missing} is not; set both, or neither")
        return self


class Limits(Section):
    """Bounds that fit a machine with 1 GB of memory. At a limit, nobody is turned away who comes new: the
    owner that holds most loses what has waited longest for its client (docs/guide/limits.md)."""

    max_head_bytes: Size = 32 * KIB
    """A request's header fields, decoded, with 32 bytes added for each (RFC 9114 §4.2.2). A larger head is
    answered 431."""
    max_fields: Positive = 200
    """Header fields of a request, and of a model server's answer. A request with more is answered 431, an
    answer with more is a failure of its model server."""
    max_body_bytes: Positive = 32 * MIB
    """A request's body: enough for long prompts and a few images. A larger body is answered 413."""
    max_buffered_bytes: Positive = 256 * MIB
    """All bodies together that are being read, or wait for their answer. When they are more, the owner that
    holds most loses the one that has waited longest for its client; where none waits, requests are answered
    503."""
    reserve_percent: Annotated[int, Field(ge=0, le=90)] = 10
    """The part of all connections, requests and buffered bytes that only clients with a known key can have
    and, of requests, probes of `/healthz` and `/readyz`."""
    ipv4_block_bits: Annotated[int, Field(ge=0, le=32)] = 24
    """Clients without a known key share by block of addresses: this many leading bits are the block. A /24 is
    what one network commonly has; with 32, somebody who has 256 addresses would have 256 shares."""
    ipv6_block_bits: Annotated[int, Field(ge=0, le=128)] = 48
    """The same for IPv6, where one customer commonly has a /56 or a /48."""
    max_event_bytes: Size = 256 * KIB
    """An SSE event or NDJSON line is held until it is complete. One that is longer than this is sent in
    pieces."""
    max_connections: Positive = 1000
    """Connections of all clients at one time, over QUIC and TCP."""
    max_handshakes: Positive = 256
    """Handshakes that may be under way at one time over TCP, and again over QUIC."""
    retry_above_handshakes: Annotated[int, Field(ge=0)] = 100
    """While this many handshakes are under way, a client must first show that its address is its own (Retry,
    RFC 9000 §8.1.2). That costs the client a round trip, so it is not asked for below this number."""
    max_tickets: Annotated[int, Field(ge=0)] = 20_000
    """Session tickets that are kept for clients that come back. Each is good for one first flight with early
    data (0-RTT), and takes about 400 bytes. 0: there is no early data."""
    handshake_buffer_bytes: Size = 16 * KIB
    """How much a client may send before its handshake begins."""
    max_streams_per_connection: Positive = 100
    """Requests that one connection may have at one time; servers of HTTP/2 and HTTP/3 commonly allow 100."""
    max_exchanges: Positive = 4096
    """Requests that all connections together may have at one time. Further ones take the place of one that
    waits for its client; while all of them are being served, they are answered 503."""
    max_waiting_heads: Positive = 1024
    """Requests over HTTP/3 whose head has not come whole. A head comes in one packet or two, so more than a
    few wait only when somebody means it."""
    cancel_burst: Positive = 1000
    """How many requests one connection may cancel at once; after that, `cancels_per_second`. People press
    stop, attackers press it a thousand times a second, and a proxy before the gateway carries many people."""
    cancels_per_second: Positive = 200
    """How many requests one connection may cancel a second, in the long run."""
    useless_burst: Positive = 1000
    """How many frames that move nothing on one connection may send at once: PING, SETTINGS, PRIORITY_UPDATE,
    empty DATA, unknown ones, and WINDOW_UPDATE beyond two for each of our frames. Clients send a handful a
    second; a connection that sends more than this, and then more than `useless_per_second`, is closed."""
    useless_per_second: Positive = 200
    """How many such frames one connection may send a second, in the long run."""
    path_changes_burst: Positive = 5
    """How often one connection over HTTP/3 may change at once to an address that it has not shown to be its
    own. A phone that moves changes once or twice; a client that writes other people's addresses on its
    packets does so all the time, and nothing is sent there beyond this."""
    path_changes_per_second: Positive = 1
    """How often it may do so a second, in the long run."""
    stream_budget_bytes: Size = 32 * KIB
    """How much of an answer may wait for its connection: a hundred tokens or more. When it is more, the model
    server is not read until the reader has taken some."""
    stream_receive_window_bytes: Size = 256 * KIB
    """How much a request may send before it is read (flow control of QUIC and HTTP/2)."""
    connection_receive_window_bytes: Size = 256 * KIB
    """How much all requests of a connection together may send before they are read."""
    connection_send_window_bytes: Size = 256 * KIB
    """How much a connection over HTTP/3 may have sent, and not seen acknowledged, at first: what eight
    answers make while a radio pauses for two seconds. It doubles each time the client has taken that much."""
    max_connection_send_window_bytes: Size = 4 * MIB
    """How far that grows. With a round trip of 100 ms this allows 40 MB/s."""
    max_unread_bytes: Positive = 64 * MIB
    """By how much the windows of all connections together may have grown. One owner may have as much of it as
    is left for the others."""


class Timeouts(Section):
    """How long the gateway waits, and for what, in seconds."""

    handshake_s: Seconds = 10
    """For a client's handshake, of QUIC or TLS."""
    silent_handshake_s: Seconds = 2
    """For the next packet of a handshake. Over a satellite (600 ms) it comes within this time even when one
    was lost, and was repeated after a second."""
    request_s: Seconds = 30
    """For a request's head to come, and again for its body."""
    short_answer_s: Seconds = 5
    """For a client to take an answer of the gateway's own that has less than 4 kB (an error, a list of
    models): every client has room for that from the beginning."""
    idle_s: Seconds = 30
    """A connection whose other side is silent for this long is lost. It is asked (PING) after a third of it;
    or of what the client has announced, when that is less."""
    suspect_s: Seconds = 2.25
    """A client over HTTP/3 that acknowledges nothing for this long, while something was sent to it, is taken
    for gone; not before three probe timeouts, nor before twice the longest silence that its path came back
    from. Its answer ends as *lost*; one with an `Idempotency-Key` goes on for `idempotency.lost_s`, and the
    client reads on if it comes back. So a killed client frees its model server within 3 s, and a radio that
    pauses for 4 s loses no answer that has a key."""
    unused_s: Seconds = 120
    """A connection that has no request for this long is closed."""
    stalled_reader_s: Seconds = 300
    """A client that takes nothing of its answer for this long is given up."""
    ticket_s: Annotated[float, Field(gt=0, le=86_400 * 7)] = 7200
    """How long a client may stay away and still come back with early data. RFC 8446 allows at most 7 days."""
    connect_s: Seconds = 5
    """For a connection to a model server."""
    first_byte_s: Seconds = 600
    """From the end of a request to the head of its answer, because long prompts wait in queues. The SDKs wait
    as long."""
    silence_s: Seconds = 600
    """For the next piece of an answer to come from the model server."""
    leave_s: Annotated[float, Field(ge=0, le=86400)] = 0
    """How long new connections are still taken after SIGTERM, while `/readyz` answers 503. Load balancers
    need a moment to look elsewhere."""
    drain_s: Seconds = 30
    """How long answers may run on after that, before they are cut."""


def _model_names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Upstream(Section):
    """A model server."""

    url: str
    """`http://host:port` or `https://host`. A path in it is put before the path of every request. A version
    at its end (`https://host/v1`) stands for the `/v1` of requests."""
    name: str = ""
    """What logs and errors call it. The default is the URL's host and port."""
    models: Annotated[list[str], BeforeValidator(_model_names)] = []
    """The models that it serves; `*` matches any run of characters. When there are none, the gateway asks its
    `/v1/models`; where that tells nothing, it is asked for every model that no other upstream has. One
    upstream alone is asked for every model, unless its models stand here."""
    paths: list[str] = ["/"]
    """Beginnings of the paths that it serves, in whole segments: `/v1` is `/v1` and what lies below it. No
    other path reaches it."""
    api_key_env: str | None = None
    """The environment variable that holds its key. Keys do not belong in files."""
    protocol: Literal["auto", "http1", "http2"] = "auto"
    """`auto`: what the server chooses over TLS (ALPN), and HTTP/1.1 without TLS. HTTP/2 without TLS must be
    asked for (`http2`)."""
    health_path: str = "/v1/models"
    """The path that is asked every `health_interval_s` seconds. Every status below 500 is healthy."""
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
            raise ValueError("url: expected no query, no fragment and no user; a key goes into api_key_env")
        if self.api_key_env is not None:
            key_of_environment(self.api_key_env)
        if not all(path.startswith("/") for path in [*self.paths, self.health_path]):
            raise ValueError("paths and health_path: expected every path to begin with /")
        if not self.name:
            object.__setattr__(self, "name", f"{url.hostname}:{port}" if port else url.hostname)
        return self


def key_of_environment(name: str) -> str:
    """The API key in an environment variable, without the line feed that files and shells leave at its end.

    Raises a `ValueError` that names the variable, and nothing of what it holds.
    """
    key = os.environ.get(name, "").strip()
    if not key:
        raise ValueError(f"api_key_env: the environment variable {name} is not set")
    if not all("!" <= char <= "~" for char in key):
        raise ValueError(
            f"api_key_env: the environment variable {name} holds a blank, a line end, or a character that is "
            "not ASCII; expected a key, which has none of these"
        )
    return key


Policy = Literal["run", "wait", "refuse"]


class EarlyData(Section):
    """What is done with a request in the first flight of a client that comes back (0-RTT, RFC 8470). Somebody
    on the way could send it a second time; a ticket is good once, so that no process takes it twice. `run`:
    the request runs at once, a round trip earlier. `wait`: it runs after the handshake. `refuse`: it is
    answered 425, and the client sends it again; browsers show the 425 to people."""

    safe: Policy = "run"
    """GET, HEAD, OPTIONS."""
    idempotent: Policy = "run"
    """POST with an `Idempotency-Key`: a second request joins the answer of the first."""
    other: Policy = "wait"
    """All other requests, most completions among them."""
    routes: dict[Annotated[str, Field(pattern="^/")], Policy] = {}
    """Beginnings of paths, in whole segments; they go before the three settings above, and the longest
    wins."""


class Idempotency(Section):
    """Answers to requests with an `Idempotency-Key`. A second request with the same key gets the answer of
    the first."""

    max_bytes: Positive = 64 * MIB
    """All such answers together, those that run and those that ended a moment ago. When they are more,
    further requests with a key are answered 503, and of an answer that runs, only what its clients have not
    read yet is kept."""
    answer_bytes: Size = MIB
    """How much of one answer is kept: some 4,000 tokens. The beginning of a longer answer cannot be had
    again."""
    unread_bytes: Size = 256 * KIB
    """How much of an answer none of its clients may have read before its model server must wait: some 1,000
    tokens, for clients that were lost and come back within `lost_s`."""
    kept_s: Seconds = 60
    """How long an answer is kept after its end. One that broke off is not kept, nor is one that SDKs ask for
    again by themselves (408, 425, 429, 5xx): the next request with its key begins anew."""
    lost_s: Seconds = 10
    """How long an answer is generated on after its client was lost, so that the client can come back with the
    same key. A client that stops ends it at once."""


class UpstreamPool(Section):
    """Connections to model servers that are kept open."""

    idle_per_upstream: Annotated[int, Field(ge=0)] = 64
    """How many idle connections to one model server each worker keeps: as many as answers may end at one
    time."""
    idle_s: Seconds = 4
    """How long an idle connection is kept. It is shorter than what model servers keep: llama.cpp and uvicorn
    close theirs after 5 s."""
    warm_s: Annotated[float, Field(ge=0, le=86_400)] = 60
    """How long after a model server was used connections to it are kept ready, so that a first token does not
    pay for a handshake: as many as requests ran at one time, shared among the workers, and at least one for
    each. Those that the model server closes are opened again. 0: none are kept ready."""
    ca_file: Path | None = None
    """A PEM file of certificates to trust beside the system's."""
    max_head_bytes: Size = 64 * KIB
    """How large the head of a model server's answer may be."""


class Auth(Section):
    """Who may use the gateway. Without keys, everybody may."""

    keys: list[str] = []
    """Entries of the form `name:sha256:hex`, as `headrace key new` prints them. The keys themselves stand
    nowhere."""

    @model_validator(mode="after")
    def _check(self) -> Auth:
        for entry in self.keys:
            name, _, digest = entry.partition(":sha256:")
            if not name or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
                raise ValueError(
                    "keys: expected name:sha256:<64 hex digits>, as `headrace key new` prints it"
                )
        return self


class Cors(Section):
    """Which pages of other origins a browser lets read answers (CORS, of WHATWG Fetch). Without
    origins, what a model server says of it passes through, and with keys no such page gets in."""

    origins: list[str] = []
    """`https://chat.example.org`, with its port where it has one; `*` is every origin, and `null` a file. A
    preflight is then answered here, before a key is asked for, because browsers send none with it."""
    max_age_s: Annotated[int, Field(ge=0, le=86_400)] = 7200
    """How long a browser may remember the answer to a preflight; Chromium remembers at most as long."""

    @model_validator(mode="after")
    def _check(self) -> Cors:
        for origin in self.origins:
            if origin not in ("*", "null") and not ORIGIN.fullmatch(origin):
                raise ValueError(
                    "origins: expected an origin as browsers write it (https://chat.example.org, lower case, "
                    f"no path), or *, got {origin!r}"
                )
        return self


ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")


class Log(Section):
    """The log, on standard error."""

    format: Literal["text", "json"] = "text"
    """`text` is for people, `json` for machines."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Less urgent lines are left out."""
    access: bool = True
    """Whether every request has a line."""
    max_waiting_bytes: Size = MIB
    """How much may wait for the reader of the log: some 5,000 lines. Further lines are dropped, and counted
    in a line of their own."""


class Local(Section):
    """The local model, which is served when there is no upstream."""

    model: Path | None = None
    """A GGUF file. The default is SmolLM2-135M-Instruct, which `headrace model install` brings."""
    parallel: Annotated[int, Field(gt=0, le=256)] = 4
    """How many answers are generated at one time (llama.cpp's slots)."""
    context: Positive = 2048
    """How many tokens each slot has for a prompt and its answer."""
    threads: Annotated[int, Field(ge=0)] = 0
    """0: one less than there are cores. llama.cpp's threads wait for each other by spinning. With one on
    every core, gaps between tokens become several times as long as soon as anything else runs, and the
    gateway does."""
