"""A request on its way to a model server: which one is asked, and which other when that one fails.

In: an exchange, and the upstreams that serve its path and model. Out: its answer, relayed; or the best of the
failures, while nothing of an answer was sent. It must not know how a request is let in, nor what a token is.

A request has one budget of tries, and it is small, for a generation costs a GPU: two upstreams, and at each
of them one repeat, which the engine makes only where the protocol proves that the first was not processed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.config import Config
from headrace.errors import OverloadedError, RequestError
from headrace.exchange import Exchange, RelayReport, ReplayBuffer
from headrace.gateway import early_data
from headrace.gateway.answers import meaning_of, send, send_error, send_status, status_of
from headrace.gateway.idempotency import Answer, Answers
from headrace.gateway.upstreams import Upstream, Upstreams
from headrace.observe.outcome import Outcome

MOST_UPSTREAMS = 2
"""How many upstreams one request is sent to at most."""

FAILING = [(429, 429), (500, 599)]
"""Statuses (ranges) of an answer that another upstream may better: too busy, or failed."""

RANKS = {429: 3, 503: 2, 529: 2}
"""Which failure tells a client most; behind them come other answers, then those that never came. 529 is
Anthropic's `overloaded`."""

UNREACHABLE = {"upstream_resolve", "upstream_connect", "upstream_connect_timeout", "upstream_tls"}
"""Failures that say that the upstream itself is unhealthy, not one answer of it."""


async def refuse(
    exchange: Exchange, outcome: Outcome, code: str, message: str | None = None, param: str | None = None
) -> None:
    """Answers with an error of the gateway's own. Without a message, the code's meaning is told."""
    outcome.status, outcome.cause = status_of(code), code
    await send_error(exchange, code, message or meaning_of(code), param)


@dataclass(frozen=True)
class Dispatcher:
    """Sends requests to upstreams, by one configuration; after a reload there is another dispatcher."""

    config: Config
    upstreams: Upstreams
    forwards_keys: bool
    """The client's API key is meant for the upstream, because the gateway has none of its own."""
    early: early_data.Counts
    answers: Answers
    pseudonym: str
    """What the gateway calls itself in `Via`."""

    async def relay(self, exchange: Exchange, candidates: list[Upstream], outcome: Outcome) -> None:
        """Relays an upstream's answer, or refuses."""
        await self._ask_in_turn(exchange, candidates, outcome)
        await self._tell_failure(exchange, outcome)

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
            if report.cause == "displaced":
                # Its place went to somebody else; the generation goes on, for whoever comes back.
                await self._tell_failure(exchange, outcome)
                return
            if generation:
                outcome.report = await generation
                await self._tell_failure(exchange, outcome)
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
        failures: list[tuple[Upstream, RelayReport]] = []
        while len(tried) < MOST_UPSTREAMS and (upstream := self.upstreams.choose(candidates, tried)):
            tried.append(upstream)
            held = FAILING if self._may_do_better(candidates, tried, failures) else []

            async def ask(upstream: Upstream = upstream, held: list[tuple[int, int]] = held) -> RelayReport:
                request = upstream.request(exchange, self.config, held, self.forwards_keys, self.pseudonym)
                return await (exchange.relay_into(request, buffer) if buffer else exchange.relay(request))

            outcome.upstream = upstream.name
            report = outcome.report = await self._ask(exchange, upstream, ask, outcome)
            if not (report.untouched and report.cause in ("upstream_failed", "timeout")):
                return report
            failures.append((upstream, report))
            if report.error is not None and report.error.kind.side == "us":
                break  # What we lack, no other upstream has.
        if failures:
            best, report = max(failures, key=lambda failure: worth(failure[1]))
            outcome.upstream, outcome.report = best.name, report
        return outcome.report

    def _may_do_better(
        self,
        candidates: list[Upstream],
        tried: list[Upstream],
        failures: list[tuple[Upstream, RelayReport]],
    ) -> bool:
        """Whether a failing answer is not the last word: another upstream is healthy, or an answer that
        failed before may be the better one."""
        left = [upstream for upstream in candidates if upstream not in tried]
        is_left = len(tried) < MOST_UPSTREAMS and any(upstream.is_healthy for upstream in left)
        return is_left or any(report.held for _, report in failures)

    async def _ask(
        self,
        exchange: Exchange,
        upstream: Upstream,
        ask: Callable[[], Awaitable[RelayReport]],
        outcome: Outcome,
    ) -> RelayReport:
        upstream.in_flight += 1
        try:
            report = await ask()
            outcome.runs += report.runs
            if report.untouched and report.status == early_data.TOO_EARLY:
                # It was told that this may be a replay (`Early-Data: 1`); after the handshake it is none.
                await exchange.handshake()
                self.early.retried += 1
                report = await ask()
                outcome.runs += report.runs
        finally:
            upstream.in_flight -= 1
        error = report.error
        outcome.tried.append(
            f"{upstream.name}:{report.status or (error.kind.slug if error else report.cause)}"
        )
        if error is not None and error.kind.slug in UNREACHABLE:
            upstream.mark(False, str(error))
        return report

    async def _tell_failure(self, exchange: Exchange, outcome: Outcome) -> None:
        """Says why there is no answer, while none has begun: in the model server's own words, where it had
        some."""
        report = outcome.report
        if report is None or not report.untouched or report.error is None:
            return
        kind = report.error.kind
        message = (
            f"upstream {outcome.upstream}: {kind.sentence}" if kind.side == "upstream" else kind.sentence
        )
        if report.held is None or report.status is None:
            await refuse(exchange, outcome, kind.slug, message)
            return
        fields, body = report.held
        outcome.status, outcome.cause = report.status, kind.slug
        if body is not None:
            await send(exchange, report.status, fields, body)
            return
        await send_status(exchange, report.status, kind.slug, message, None, retry_after(report))


def worth(report: RelayReport) -> tuple[int, bool]:
    """How much a failure tells a client: the largest is told."""
    if report.held is None:
        return 0, False
    return RANKS.get(report.status or 0, 1), retry_after(report) is not None


def retry_after(report: RelayReport) -> str | None:
    """When the model server wants to be asked again, in its own words."""
    fields = report.held[0] if report.held else []
    return next((value for name, value in fields if name == "retry-after"), None)
