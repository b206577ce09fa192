"""The model servers: where they are, whether they are healthy, how busy they are.

In: the configured upstreams. Out: for a path and a model, the upstream to ask. Health is learnt twice: by
asking (`health_path`), and from requests that fail.
"""

from __future__ import annotations

import asyncio
import fnmatch
import logging
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from headrace._engine import Server as Engine
from headrace.config import Config, key_of_environment
from headrace.config import Upstream as UpstreamConfig
from headrace.errors import HeadraceError
from headrace.events import dialects
from headrace.exchange import Exchange, RelayRequest, Request, Target
from headrace.gateway.answers import OF_EVERY_ANSWER
from headrace.gateway.auth import without_keys
from headrace.gateway.early_data import TOO_EARLY, is_early
from headrace.gateway.model_list import Entry, Unreadable, read, same
from headrace.gateway.paths import begins

log = logging.getLogger("headrace.upstreams")

# An unhealthy upstream is asked again so soon.
RECOVERY_INTERVAL_S = 1.0
HEALTH_TIMEOUT_S = 5.0
HEALTH_MAX_BYTES = 4 * 1024 * 1024

# Of the client's fields, these mean nothing behind us. `accept-encoding` would have the model server
# compress, and a compressed stream hides where its events end. `expect` and the framing are ours to decide.
DROPPED_FIELDS = ["accept-encoding", "expect", "content-length", "early-data", "priority"]


@dataclass
class Upstream:
    """One model server. The fields below `config` are what is known of it now."""

    config: UpstreamConfig
    target: Target
    prefix: str
    api_key: str | None
    in_flight: int = 0
    """Requests that are with it."""
    is_healthy: bool = True
    reason: str = ""
    """Why it is not healthy."""
    discovered: dict[str, Entry] = field(default_factory=dict)
    """Models that it names itself, in its order, each with its entry in the list."""
    unknown_because: str = "it was not looked at yet"
    """Why nothing is discovered, while nothing is."""

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def models(self) -> Collection[str]:
        return self.config.models or self.discovered

    @property
    def knows_models(self) -> bool:
        return bool(self.models)

    def serves_path(self, path: str) -> bool:
        return any(begins(path, beginning) for beginning in self.config.paths)

    def serves_model(self, model: str) -> bool:
        """Whether it is known to. Only what the configuration says may be a pattern: a model server is
        believed the names of its models, not that it serves those of others."""
        if not self.config.models:
            return model in self.discovered or any(same(model, known) for known in self.discovered)
        return any(same(model, known) or fnmatch.fnmatchcase(model, known) for known in self.config.models)

    def request(
        self,
        exchange: Exchange,
        config: Config,
        held: list[tuple[int, int]],
        forward_key: bool,
        pseudonym: str,
    ) -> RelayRequest:
        """What to ask it; the body is the one that the engine keeps. `held`: statuses (ranges) that are
        reported, instead of relayed. `pseudonym`: what the gateway calls itself in `Via`."""
        set_fields = [("via", via(exchange.request, pseudonym))]
        # The handshake may end between two looks.
        if may_be_replay := exchange.may_be_replay:
            held = [*held, (TOO_EARLY, TOO_EARLY)]
        if may_be_replay or is_early(exchange):
            set_fields.append(("early-data", "1"))
        drop, asked = DROPPED_FIELDS, exchange.request.target
        if self.api_key or not forward_key:
            drop, asked = [*drop, *dialects.key_fields()], without_keys(asked)
        if self.api_key:
            set_fields.append(dialects.key_field(_key_field(exchange.request), self.api_key))
        return RelayRequest(
            exchange.request,
            self.target,
            joined(self.prefix, asked),
            remove=drop,
            set=set_fields,
            body=None,
            connect_timeout=config.timeouts.connect_s,
            head_timeout=config.timeouts.first_byte_s,
            idle_timeout=config.timeouts.silence_s,
            held_statuses=held,
            answer_headers=OF_EVERY_ANSWER.get(),
        )

    def mark(self, healthy: bool, reason: str = "") -> None:
        if healthy != self.is_healthy:
            if healthy:
                log.info("upstream %s is healthy again", self.name)
            else:
                log.warning("upstream %s is unhealthy: %s", self.name, reason)
        self.is_healthy, self.reason = healthy, reason

    def __repr__(self) -> str:
        state = "healthy" if self.is_healthy else f"unhealthy: {self.reason}"
        return f"<Upstream {self.name} {state}, {self.in_flight} in flight>"


def via(request: Request, pseudonym: str) -> str:
    """The `Via` field for the next hop: the hops before this one in their order, then the version in which
    the request came here and `pseudonym` (RFC 9110 §7.6.3)."""
    version = request.protocol.removeprefix("HTTP/")
    return ", ".join([*_hops(request), f"{version} {pseudonym}"])


def came_by(request: Request, pseudonym: str) -> bool:
    """Whether a hop on the request's way called itself `pseudonym`."""
    return any(pseudonym in re.split(r"[\s,]+", hops) for hops in _hops(request))


def _hops(request: Request) -> list[str]:
    """The values of all `Via` fields, without those that are empty."""
    values = [value.strip() for name, value in request.headers if name == "via"]
    return [value for value in values if value]


VERSION = re.compile(r"/v[0-9]+[a-z0-9]*$")
"""The end of a URL that is a base for SDKs (`https://host/v1`)."""


def joined(prefix: str, target: str) -> str:
    """The target to ask an upstream for whose URL has the path `prefix`. The version at the end of a URL is
    the one of the paths below it, so it is not said twice: it stands in place of the `/v1` of a request, and
    no other path lies below it."""
    if not (version := VERSION.search(prefix)):
        return prefix + target
    if begins(target.partition("?")[0], "/v1"):
        return prefix + target.removeprefix("/v1")
    return prefix[: version.start()] + target


def _key_field(request: Request) -> str:
    """The field in which an upstream is given its own key: the one that the client used, for that is the one
    that this kind of server wants; or else the API's own."""
    known = dialects.of(request.path).key_fields
    used = [name for name in [*known, *dialects.key_fields()] if request.header(name)]
    return (used or known)[0]


def make(config: UpstreamConfig) -> Upstream:
    url = urlsplit(config.url)
    is_tls = url.scheme == "https"
    port = url.port or (443 if is_tls else 80)
    target = Target(is_tls, url.hostname or "", port, config.protocol)
    key = key_of_environment(config.api_key_env) if config.api_key_env else None
    return Upstream(config, target, url.path.rstrip("/"), key)


class Upstreams:
    """All of them."""

    def __init__(self, configs: list[UpstreamConfig], before: Upstreams | None = None) -> None:
        """`before`: those of the configuration before; one that has not changed stays what it is."""
        known = before.all if before else []

        def kept(made: Upstream) -> Upstream:
            same = (old for old in known if (old.config, old.api_key) == (made.config, made.api_key))
            return next(same, made)

        self.all: list[Upstream] = [kept(make(config)) for config in configs]
        self._turn = 0

    def candidates(self, path: str, model: str | None) -> list[Upstream]:
        """Those that serve this path and model, healthy or not.

        Where none is known to serve the model, those may whose models are not known, and one that is alone:
        it knows its models better than its list does. Only `models` in the configuration shuts others out.
        """
        serving = [upstream for upstream in self.all if upstream.serves_path(path)]
        if model is None:
            return serving
        if known := [upstream for upstream in serving if upstream.serves_model(model)]:
            return known
        is_alone = len(serving) == 1
        return [up for up in serving if not up.knows_models or (is_alone and not up.config.models)]

    @property
    def is_one_unknown(self) -> bool:
        """There is one alone, and nothing is known of its models: it answers for them itself."""
        return len(self.all) == 1 and not self.all[0].knows_models

    def differ(self, candidates: list[Upstream]) -> bool:
        """Whether some of them serve other models than others: then a request must name its model."""
        return len({frozenset(upstream.models) for upstream in candidates}) > 1

    def choose(self, candidates: list[Upstream], tried: list[Upstream]) -> Upstream | None:
        """The least busy of the healthy ones, and only then of the others; equals take turns."""
        left = [upstream for upstream in candidates if upstream not in tried]
        if not left:
            return None
        self._turn += 1
        start = self._turn % len(left)
        return min(
            left[start:] + left[:start], key=lambda upstream: (not upstream.is_healthy, upstream.in_flight)
        )

    async def poll_health(self, engine: Engine, started: Callable[[], None]) -> None:
        """Asks every upstream how it is, until cancelled; calls `started` after the first round."""
        async with asyncio.TaskGroup() as group:
            rounds = [group.create_task(check(upstream, engine)) for upstream in self.all]
            await asyncio.wait(rounds) if rounds else None
            started()
            for upstream in self.all:
                group.create_task(poll_one(upstream, engine))


async def poll_one(upstream: Upstream, engine: Engine) -> None:
    while True:
        await asyncio.sleep(upstream.config.health_interval_s if upstream.is_healthy else RECOVERY_INTERVAL_S)
        await check(upstream, engine)


async def check(upstream: Upstream, engine: Engine) -> None:
    """Asks once. Whatever comes of it, the next look is not lost."""
    try:
        await _ask(upstream, engine)
    except Exception:
        log.exception("upstream %s: the look at it failed; it is looked at again", upstream.name)


async def _ask(upstream: Upstream, engine: Engine) -> None:
    fields, path = [("accept", "application/json")], upstream.config.health_path
    if upstream.api_key:
        fields += [dialect.key_header(upstream.api_key) for dialect in dialects.sharing(path)]
    try:
        status, _, body = await engine.fetch(
            upstream.target,
            "GET",
            joined(upstream.prefix, path),
            fields,
            b"",
            connect_timeout=HEALTH_TIMEOUT_S,
            head_timeout=HEALTH_TIMEOUT_S,
            max_bytes=HEALTH_MAX_BYTES,
        )
    except HeadraceError as error:
        if error.kind.side == "upstream":
            upstream.mark(False, str(error))
            upstream.unknown_because = str(error)
        else:
            # What we lack (descriptors, say) is nothing that the model server did.
            log.warning("upstream %s cannot be asked how it is: %s", upstream.name, error)
        return
    try:
        upstream.discovered = read(path, status, body, upstream.api_key is not None)
    except Unreadable as error:
        # What it said before still holds.
        upstream.unknown_because = str(error)
    # 501: there is no such page. It took the connection and answered, which is all that can be asked.
    is_healthy = status < 500 or status == 501
    upstream.mark(is_healthy, "" if is_healthy else f"{path} answers {status}")
