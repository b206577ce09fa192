"""One request, top to bottom. READ THIS FIRST.

    early data -> open pages -> key -> own pages -> body -> model -> upstream -> relay -> report

In: an exchange. Out: its answer, by way of an upstream, and one line in the access log. A token never comes
here: from `exchange.relay` on, the engine moves the answer, and this file hears of it again when it is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from headrace.config import Config
from headrace.errors import ClientGoneError, HeadraceError, OverloadedError, RequestError
from headrace.exchange import Exchange, Recording, RelayReport
from headrace.gateway import early_data, models, routes
from headrace.gateway.answers import send_error, status_of
from headrace.gateway.auth import Keys
from headrace.gateway.keyed import Answer, Keyed
from headrace.gateway.upstreams import Upstream, Upstreams
from headrace.observe.log import Access
from headrace.observe.outcome import Outcome
from headrace.server import Server

log = logging.getLogger("headrace.gateway")


@dataclass
class Gateway:
    """The gateway's handler, and its life: `start`, `drain`, `close`."""

    config: Config
    certificate_pem: str
    key_pem: str
    upstreams: Upstreams = field(init=False)
    keys: Keys = field(init=False)
    server: Server = field(init=False)
    access: Access = field(init=False)
    is_started: bool = False
    """The upstreams were looked at once."""
    is_draining: bool = False
    early: early_data.Counts = field(default_factory=early_data.Counts)
    keyed: Keyed = field(init=False)
    _watch: asyncio.Task[None] | None = None
    _generations: set[asyncio.Task[RelayReport | None]] = field(default_factory=set)
    """Of requests with a key: they outlive who asked first."""
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.upstreams = Upstreams(self.config.upstreams)
        self.keys = Keys(self.config.auth)
        self.access = Access(self.config.log)
        self.keyed = Keyed(self.config.idempotency)
        self.server = Server(self.config, self.certificate_pem, self.key_pem, self.handle)

    async def handle(self, exchange: Exchange) -> None:
        started = time.monotonic()
        outcome = Outcome()
        try:
            await self._answer(exchange, outcome)
        except ClientGoneError as error:
            outcome.cause = outcome.cause or error.kind.slug
        except asyncio.CancelledError:
            outcome.cause = outcome.cause or "abandoned"
            raise
        finally:
            self.access.write(exchange, outcome, time.monotonic() - started)

    async def _answer(self, exchange: Exchange, outcome: Outcome) -> None:
        request = exchange.request
        if early_data.is_early(exchange):
            outcome.is_early = True
            if not await early_data.admit(exchange, self.config.early_data, self.early):
                outcome.status, outcome.cause = status_of("too_early"), "too_early"
                return
        if page := routes.open_page(request.method, request.path):
            outcome.status = await page(self, exchange)
            return
        if self.keys.are_required:
            outcome.key = self.keys.name_of(request)
            if outcome.key is None:
                await _refuse(exchange, outcome, "invalid_api_key", "the API key is missing or unknown")
                return
        if page := routes.keyed_page(request.method, request.path):
            outcome.status = await page(self, exchange)
            return
        try:
            # Of the body only its model is looked at; the engine keeps the bytes and sends them on.
            outcome.model = models.asked_model(request, await exchange.body())
        except models.BadBody as error:
            await _refuse(exchange, outcome, "invalid_json", str(error))
            return
        except (RequestError, OverloadedError) as error:
            await _refuse(exchange, outcome, error.kind.slug, str(error))
            return
        candidates = self.upstreams.candidates(request.path, outcome.model)
        if not candidates:
            await self._refuse_route(exchange, outcome)
        elif early_data.is_keyed(request):
            await self._relay_once(exchange, candidates, outcome)
        else:
            report = await self._ask_two(exchange, candidates, outcome)
            await self._refuse_failed(exchange, outcome, report)

    async def _relay_once(self, exchange: Exchange, candidates: list[Upstream], outcome: Outcome) -> None:
        """A request with an `Idempotency-Key`: its answer is recorded, and told to all who ask with that
        key."""
        while True:
            try:
                answer, is_new = self.keyed.find(exchange.request, await exchange.body(), outcome.key)
            except (RequestError, OverloadedError) as error:
                await _refuse(exchange, outcome, error.kind.slug, str(error))
                return
            outcome.is_joined = not is_new
            generation = None
            if is_new:
                generation = asyncio.create_task(self._generate(exchange, candidates, outcome, answer))
                self._generations.add(generation)
                generation.add_done_callback(self._forget_generation)
            report = outcome.report = await exchange.follow(answer.recording)
            if not report.untouched:
                return
            if generation:
                outcome.report = await generation
                await self._refuse_failed(exchange, outcome, outcome.report)
                return
            # Who asked first got nothing: this request begins anew.

    async def _generate(
        self, exchange: Exchange, candidates: list[Upstream], outcome: Outcome, answer: Answer
    ) -> RelayReport | None:
        """Goes on when the client that asked first has left and others follow."""
        try:
            return await self._ask_two(exchange, candidates, outcome, answer.recording)
        finally:
            self.keyed.end(answer)

    def _forget_generation(self, generation: asyncio.Task[RelayReport | None]) -> None:
        self._generations.discard(generation)
        error = None if generation.cancelled() else generation.exception()
        if error is not None and not isinstance(error, HeadraceError):
            log.error("a generation with a key failed", exc_info=error)

    async def _ask_two(
        self,
        exchange: Exchange,
        candidates: list[Upstream],
        outcome: Outcome,
        recording: Recording | None = None,
    ) -> RelayReport | None:
        """Asks the least busy upstream, and one other while nothing of an answer was sent on."""
        tried: list[Upstream] = []
        report: RelayReport | None = None
        while (upstream := self.upstreams.choose(candidates, tried)) and len(tried) < 2:
            tried.append(upstream)
            outcome.upstream = upstream.name
            is_last = len(tried) == 2 or len(candidates) == 1

            async def ask(upstream: Upstream = upstream, hold: bool = not is_last) -> RelayReport:
                request = upstream.request(exchange, self.config, hold, not self.keys.are_required)
                return await (exchange.record(request, recording) if recording else exchange.relay(request))

            report = outcome.report = await self._ask(exchange, upstream, ask)
            if not (report.untouched and report.cause in ("upstream_failed", "timeout")):
                break
        return report

    async def _ask(
        self, exchange: Exchange, upstream: Upstream, ask: Callable[[], Awaitable[RelayReport]]
    ) -> RelayReport:
        upstream.in_flight += 1
        try:
            report = await ask()
            if report.untouched and report.status == early_data.TOO_EARLY:
                # It was told that this may be a replay (`Early-Data: 1`); after the handshake it is none.
                await exchange.handshake()
                self.early.retried += 1
                report = await ask()
        finally:
            upstream.in_flight -= 1
        error = report.error
        if error is not None and error.kind.slug in UNREACHABLE:
            upstream.mark(False, str(error))
        return report

    async def _refuse_failed(self, exchange: Exchange, outcome: Outcome, report: RelayReport | None) -> None:
        """Says why there is no answer, while none has begun."""
        if report is not None and report.untouched and report.error is not None:
            kind = report.error.kind
            is_theirs = kind.side == "upstream"
            message = f"upstream {outcome.upstream}: {kind.sentence}" if is_theirs else kind.sentence
            await _refuse(exchange, outcome, kind.slug, message)

    async def _refuse_route(self, exchange: Exchange, outcome: Outcome) -> None:
        path, model = exchange.request.path, outcome.model
        if not self.upstreams.candidates(path, None):
            await _refuse(exchange, outcome, "no_route", f"no upstream serves the path {path}")
        elif any(not upstream.knows_models for upstream in self.upstreams.all):
            message = f"no upstream that is reachable now is known to serve the model {model!r}"
            await _refuse(exchange, outcome, "model_unavailable", message)
        else:
            known = [entry["id"] for entry in models.merged(self.upstreams.all)["data"]]
            message = f"no upstream serves the model {model!r}; there are: {', '.join(known[:20]) or 'none'}"
            await _refuse(exchange, outcome, "model_not_found", message, "model")

    async def start(self) -> None:
        """Binds, looks at the upstreams once, and then keeps watching them. Raises `ConfigError`."""
        self.server.start()
        first_round = asyncio.Event()
        self._watch = asyncio.create_task(self.upstreams.watch(self.server.engine, first_round.set))
        await first_round.wait()
        self.is_started = True

    async def reload(self, config: Config, certificate_pem: str, key_pem: str) -> list[str]:
        """Takes another configuration and certificate; running answers do not notice.

        Returns the sections that have changed and hold only from the next start on. Raises `ConfigError`;
        then all stays as it was.
        """
        self.server.set_certificate(certificate_pem, key_pem)
        kept = {name: getattr(self.config, name) for name in Config.model_fields if name not in AT_ONCE}
        later = [name for name, section in kept.items() if getattr(config, name) != section]
        upstreams = Upstreams(config.upstreams, self.upstreams)
        first_round = asyncio.Event()
        watch = asyncio.create_task(upstreams.watch(self.server.engine, first_round.set))
        await first_round.wait()
        if self._watch:
            self._watch.cancel()
        self._watch, self.upstreams = watch, upstreams
        self.config = config.model_copy(update=kept)
        self.keys, self.access = Keys(config.auth), Access(config.log)
        return later

    async def drain(self) -> int:
        """Lets running answers end; returns how many were cut after `timeouts.drain_s`.

        Not ready from now on; new connections are refused after `timeouts.leave_s`.
        """
        self.is_draining = True
        timeouts = self.config.timeouts
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), timeouts.leave_s)
        return await self.server.drain(0 if self._hurry.is_set() else timeouts.drain_s)

    async def hurry(self) -> None:
        """Ends a drain that runs: each answer that still runs gets its last error event, and is cut."""
        self._hurry.set()
        await self.server.drain(0)

    async def close(self) -> None:
        for generation in self._generations:
            generation.cancel()
        if self._watch:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.server.close()

    async def __aenter__(self) -> Gateway:
        try:
            await self.start()
        except BaseException:
            if self._watch:
                await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


AT_ONCE = {"tls", "upstreams", "auth", "early_data", "log"}
"""Sections that a running gateway can change. With all others the engine, or the local model, was started."""

UNREACHABLE = {"upstream_resolve", "upstream_connect", "upstream_connect_timeout", "upstream_tls"}
"""Failures that say that the upstream itself is unwell, not one answer of it."""


async def _refuse(
    exchange: Exchange, outcome: Outcome, code: str, message: str, param: str | None = None
) -> None:
    outcome.status, outcome.cause = status_of(code), code
    await send_error(exchange, code, message, param)
