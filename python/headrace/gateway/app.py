"""One request, top to bottom. READ THIS FIRST.

    preflight -> early data -> open pages -> key -> own pages -> body -> model -> upstream -> relay -> report

In: an exchange. Out: its answer, by way of an upstream, and one line in the access log. A token never comes
here: from `exchange.relay` on, the engine moves the answer, and this file hears of it again when it is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from dataclasses import dataclass, field

from headrace.config import Config
from headrace.errors import ClientGoneError, HeadraceError, Kind, OverloadedError, RequestError, kinds
from headrace.exchange import Exchange
from headrace.gateway import early_data, models, pages
from headrace.gateway.answers import (
    OF_EVERY_ANSWER,
    answer_preflight,
    cors_fields,
    is_preflight,
    status_of,
)
from headrace.gateway.auth import Keys
from headrace.gateway.dispatch import Dispatcher, refuse
from headrace.gateway.idempotency import Answers
from headrace.gateway.paths import is_resolved
from headrace.gateway.upstreams import Upstreams, came_by
from headrace.observe.log import Access
from headrace.observe.outcome import Outcome
from headrace.printable import clipped
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
    _first_look: asyncio.Event = field(default_factory=asyncio.Event)
    """The upstreams were looked at once. Until then requests wait: nothing is known to refuse them by."""
    is_draining: bool = False
    pseudonym: str = field(default_factory=lambda: f"headrace-{secrets.token_hex(4)}")
    """What it calls itself in `Via`. Each gateway has another: a gateway before a gateway is not a loop."""
    early: early_data.Counts = field(default_factory=early_data.Counts)
    answers: Answers = field(init=False)
    """To requests with an `Idempotency-Key`."""
    dispatcher: Dispatcher = field(init=False)
    _polling: asyncio.Task[None] | None = None
    _drain_now: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.upstreams = Upstreams(self.config.upstreams)
        self.keys = Keys(self.config.auth)
        self.access = Access(self.config.log)
        self.answers = Answers(self.config.idempotency)
        self.dispatcher = self._dispatcher()
        self.server = Server(self.config, self.certificate_pem, self.key_pem, self.handle)

    def _dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self.config,
            self.upstreams,
            forwards_keys=not self.keys.are_required,
            early=self.early,
            answers=self.answers,
            pseudonym=self.pseudonym,
        )

    async def handle(self, exchange: Exchange) -> None:
        started = time.monotonic()
        outcome = Outcome()
        OF_EVERY_ANSWER.set(cors_fields(self.config.cors, exchange.request))
        try:
            await self._answer(exchange, outcome)
        except ClientGoneError as error:
            outcome.cause = outcome.cause or error.kind.slug
        except HeadraceError as error:
            log.warning("%r: %s", exchange, error)
            await self._tell_failure(exchange, outcome, error.kind)
        except Exception:
            log.exception("%r: the gateway failed", exchange)
            await self._tell_failure(exchange, outcome, kinds()["internal"])
        except asyncio.CancelledError:
            outcome.cause = outcome.cause or "abandoned"
            raise
        finally:
            self.access.write(exchange, outcome, time.monotonic() - started)

    async def _tell_failure(self, exchange: Exchange, outcome: Outcome, kind: Kind) -> None:
        """Whatever fails before a head was sent is an answer with a status; what was found, the log says."""
        outcome.cause = kind.slug
        if exchange.phase == "open":
            with contextlib.suppress(HeadraceError):
                await refuse(exchange, outcome, kind.slug)

    async def _answer(self, exchange: Exchange, outcome: Outcome) -> None:
        request = exchange.request
        if not is_resolved(request.path):
            await refuse(exchange, outcome, "invalid_path")
            return
        if is_preflight(self.config.cors, request):
            outcome.status = await answer_preflight(self.config.cors, exchange)
            return
        if came_by(request, self.pseudonym):
            await refuse(exchange, outcome, "loop_detected")
            return
        if early_data.is_early(exchange):
            outcome.is_early = True
            if not await early_data.admit(exchange, self.config.early_data, self.early):
                outcome.status, outcome.cause = status_of("too_early"), "too_early"
                return
        if page := pages.open_page(request.method, request.path):
            is_let_in = not self.keys.are_required or self.keys.name_of(request) is not None
            outcome.status = await page(self._state(is_let_in), exchange)
            return
        if self.keys.are_required:
            outcome.key = self.keys.name_of(request)
            if outcome.key is None:
                await refuse(exchange, outcome, "invalid_api_key")
                return
            exchange.own(outcome.key)
        await self._first_look.wait()
        page = pages.private_page(request.method, request.path)
        if page and not self.upstreams.is_one_unknown:
            outcome.status = await page(self._state(), exchange)
            return
        try:
            # Only the model is looked at; the engine keeps the body, and sends it on.
            fields = await exchange.body_fields(models.BODY_FIELDS)
            outcome.model = models.asked(fields)
        except ValueError as error:
            await refuse(exchange, outcome, "invalid_model", str(error), "model")
            return
        except (RequestError, OverloadedError) as error:
            await refuse(exchange, outcome, error.kind.slug, str(error))
            return
        candidates = self.upstreams.candidates(request.path, outcome.model)
        if not candidates:
            await self._refuse_route(exchange, outcome)
        elif models.is_unreadable(request, fields) and self.upstreams.differ(candidates):
            await refuse(exchange, outcome, "invalid_json")
        elif early_data.is_idempotent(request):
            await self.dispatcher.relay_once(exchange, candidates, outcome)
        else:
            await self.dispatcher.relay(exchange, candidates, outcome)

    def _state(self, is_let_in: bool = True) -> pages.State:
        is_serving = self._first_look.is_set() and not self.is_draining
        return pages.State(self.upstreams.all, is_serving, is_let_in)

    async def _refuse_route(self, exchange: Exchange, outcome: Outcome) -> None:
        path, model = exchange.request.path, outcome.model
        if not self.upstreams.candidates(path, None):
            await refuse(exchange, outcome, "no_route", f"no upstream serves the path {clipped(path)}")
        else:
            known = [entry["id"] for entry in models.merged(self.upstreams.all)["data"]]
            message = f"no upstream serves the model {model!r}; there are: {', '.join(known[:20]) or 'none'}"
            await refuse(exchange, outcome, "model_not_found", message, "model")

    async def start(self) -> None:
        """Binds, asks every upstream how it is, and goes on asking. Raises `ConfigError`."""
        self.server.start()
        first_round = asyncio.Event()
        self._polling = asyncio.create_task(self.upstreams.poll_health(self.server.engine, first_round.set))
        await first_round.wait()
        self._first_look.set()

    async def reload(self, config: Config, certificate_pem: str, key_pem: str) -> list[str]:
        """Takes another configuration and certificate; running answers do not notice.

        Returns the sections that have changed and hold only from the next start on. Raises `ConfigError`;
        then all stays as it was.
        """
        self.server.set_certificate(config, certificate_pem, key_pem)
        kept = {name: getattr(self.config, name) for name in Config.model_fields if name not in AT_ONCE}
        later = [name for name, section in kept.items() if getattr(config, name) != section]
        upstreams = Upstreams(config.upstreams, self.upstreams)
        first_round = asyncio.Event()
        polling = asyncio.create_task(upstreams.poll_health(self.server.engine, first_round.set))
        await first_round.wait()
        if self._polling:
            self._polling.cancel()
        self._polling, self.upstreams = polling, upstreams
        self.config = config.model_copy(update=kept)
        self.keys, self.access = Keys(config.auth), Access(config.log)
        self.dispatcher = self._dispatcher()
        return later

    async def drain(self) -> int:
        """Lets running answers end; returns how many were cut after `timeouts.drain_s`.

        Not ready from now on; new connections are refused after `timeouts.leave_s`.
        """
        self.is_draining = True
        timeouts = self.config.timeouts
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drain_now.wait(), timeouts.leave_s)
        return await self.server.drain(0 if self._drain_now.is_set() else timeouts.drain_s)

    async def drain_now(self) -> None:
        """Ends a drain that runs: each answer that still runs gets its last error event, and is cut."""
        self._drain_now.set()
        await self.server.drain(0)

    async def close(self) -> None:
        self.answers.close()
        if self._polling:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        await self.server.close()

    async def __aenter__(self) -> Gateway:
        try:
            await self.start()
        except BaseException:
            if self._polling:
                await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


AT_ONCE = {"tls", "upstreams", "auth", "cors", "early_data", "log"}
"""Sections that a running gateway can change. With all others the engine, or the local model, was started."""
