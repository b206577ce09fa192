"""A request on its way to a model server: which one is asked, and which other when that one fails.

In: an exchange, and the upstreams that serve its path and model. Out: its answer, relayed; or a refusal,
while nothing of an answer was sent. It must not know how a request is let in, nor what a token is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.config import Config
from headrace.errors import OverloadedError, RequestError
from headrace.exchange import Exchange, RelayReport, ReplayBuffer
from headrace.gateway import early_data
from headrace.gateway.answers import send_error, status_of
from headrace.gateway.idempotency import Answer, Answers
from headrace.gateway.upstreams import Upstream, Upstreams
from headrace.observe.outcome import Outcome

MOST_UPSTREAMS = 2
"""How many upstreams one request is sent to at most."""

UNREACHABLE = {"upstream_resolve", "upstream_connect", "upstream_connect_timeout", "upstream_tls"}
"""Failures that say that the upstream itself is unhealthy, not one answer of it."""


async def refuse(
    exchange: Exchange, outcome: Outcome, code: str, message: str, param: str | None = None
) -> None:
    """Answers with an error of the gateway's own."""
    outcome.status, outcome.cause = status_of(code), code
    await send_error(exchange, code, message, param)


@dataclass(frozen=True)
class Dispatcher:
    """Sends requests to upstreams, by one configuration; after a reload there is another dispatcher."""

    config: Config
    upstreams: Upstreams
    forwards_keys: bool
    """The client's API key is meant for the upstream, because the gateway has none of its own."""
    early: early_data.Counts
    answers: Answers

    async def relay(self, exchange: Exchange, candidates: list[Upstream], outcome: Outcome) -> None:
        """Relays an upstream's answer, or refuses."""
        report = await self._ask_in_turn(exchange, candidates, outcome)
        await self._refuse_failed(exchange, outcome, report)

    async def relay_once(self, exchange: Exchange, candidates: list[Upstream], outcome: Outcome) -> None:
        """A request with an `Idempotency-Key`: its answer is recorded, and told to all who ask with that
        key."""
        while True:
            try:
                answer, is_new = self.answers.find(exchange.request, await exchange.body(), outcome.key)
            except (RequestError, OverloadedError) as error:
                await refuse(exchange, outcome, error.kind.slug, str(error))
                return
            outcome.is_joined = not is_new
            generation = None
            if is_new:
                generation = self.answers.begin(self._generate(exchange, candidates, outcome, answer))
            report = outcome.report = await exchange.replay(answer.buffer)
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
            return await self._ask_in_turn(exchange, candidates, outcome, answer.buffer)
        finally:
            self.answers.end(answer)

    async def _ask_in_turn(
        self,
        exchange: Exchange,
        candidates: list[Upstream],
        outcome: Outcome,
        buffer: ReplayBuffer | None = None,
    ) -> RelayReport | None:
        """Asks the least busy upstream, and one other while nothing of an answer was sent on."""
        tried: list[Upstream] = []
        report: RelayReport | None = None
        while len(tried) < MOST_UPSTREAMS and (upstream := self.upstreams.choose(candidates, tried)):
            tried.append(upstream)
            outcome.upstream = upstream.name
            is_last = len(tried) == min(MOST_UPSTREAMS, len(candidates))

            async def ask(upstream: Upstream = upstream, hold: bool = not is_last) -> RelayReport:
                request = upstream.request(exchange, self.config, hold, self.forwards_keys)
                return await (exchange.relay_into(request, buffer) if buffer else exchange.relay(request))

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
            await refuse(exchange, outcome, kind.slug, message)
