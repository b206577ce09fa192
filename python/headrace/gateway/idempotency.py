"""Requests with an `Idempotency-Key`: one generation for each key.

In: a key, who sent it, and what is asked. Out: the record of the answer that runs, or ended a moment ago; or
a new one. Whoever asks again with the same key, because a connection died or because somebody replayed its
first flight, is told the same answer from its first byte, and nothing is generated twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from headrace import errors
from headrace.config import Idempotency
from headrace.errors import HeadraceError
from headrace.exchange import RelayReport, ReplayBudget, ReplayBuffer, Request
from headrace.gateway.auth import identity, without_keys

log = logging.getLogger("headrace.idempotency")

MAX_KEY_LENGTH = 255

Place = tuple[str, str]
"""Who asked, and the key."""


@dataclass
class Answer:
    """The answer to one key."""

    place: Place
    buffer: ReplayBuffer
    fingerprint: bytes
    """Of the request."""
    ended_at: float = 0.0


class Answers:
    """All of them, by who asked and key."""

    def __init__(self, config: Idempotency) -> None:
        self._config = config
        self._budget = ReplayBudget(max_bytes=config.max_bytes)
        self._answers: dict[Place, Answer] = {}
        self._ended: deque[Answer] = deque()
        """The oldest first: only they are forgotten, so no request looks at more than it forgets."""
        self._generations: set[asyncio.Task[RelayReport | None]] = set()
        """They outlive the client that asked first."""
        self.attached = 0
        """Requests that joined an answer which was there."""

    def find(self, request: Request, body: bytes, key_name: str | None) -> tuple[Answer, bool]:
        """The answer to a request with a key, and whether it is new: then the caller fills it, and calls
        `end`.

        Raises `RequestError` for a key that was used for something else, or came too late, and
        `OverloadedError`.
        """
        key = request.header("idempotency-key") or ""
        if len(key) > MAX_KEY_LENGTH:
            raise errors.make("bad_request", f"idempotency-key: longer than {MAX_KEY_LENGTH} characters")
        self._forget_old()
        fingerprint = _fingerprint(request, body)
        place = (_who(request, key_name), key)
        answer = self._answers.get(place)
        if answer is None or answer.buffer.failed:
            return self._new(place, fingerprint, body), True
        if answer.fingerprint != fingerprint:
            raise errors.make("idempotency_key_reused")
        if not answer.buffer.whole:
            raise errors.make("idempotency_key_too_late")
        self.attached += 1
        return answer, False

    def begin(self, generation: Coroutine[Any, Any, RelayReport | None]) -> asyncio.Task[RelayReport | None]:
        """Runs what fills an answer, until it ends or `close()`."""
        task = asyncio.create_task(generation)
        self._generations.add(task)
        task.add_done_callback(self._forget_generation)
        return task

    def _forget_generation(self, generation: asyncio.Task[RelayReport | None]) -> None:
        self._generations.discard(generation)
        error = None if generation.cancelled() else generation.exception()
        if error is not None and not isinstance(error, HeadraceError):
            log.error("a generation with an Idempotency-Key failed", exc_info=error)

    def close(self) -> None:
        """Cancels every generation that runs."""
        for generation in self._generations:
            generation.cancel()

    def end(self, answer: Answer) -> None:
        """It has all it will have. One that may come out better next time is forgotten: its key may be tried
        again."""
        buffer = answer.buffer
        buffer.close()
        if self._answers.get(answer.place) is not answer:
            return  # It failed, and another one has taken its place.
        if buffer.finished and not _may_be_asked_again(buffer.status or 0):
            answer.ended_at = time.monotonic()
            self._ended.append(answer)
        else:
            del self._answers[answer.place]

    def _new(self, place: Place, fingerprint: bytes, body: bytes) -> Answer:
        config, most = self._config, self._config.max_bytes - self._config.answer_bytes - len(body)
        while self._ended and self._budget.bytes > most:
            self._forget_oldest()
        if self._budget.bytes > most:
            raise errors.make("overloaded", "idempotency.max_bytes is reached")
        buffer = ReplayBuffer(
            self._budget,
            body,
            max_bytes=config.answer_bytes,
            max_unread=config.unread_bytes,
            grace=config.lost_s,
        )
        answer = self._answers[place] = Answer(place, buffer, fingerprint)
        return answer

    def _forget_old(self) -> None:
        until = time.monotonic() - self._config.kept_s
        while self._ended and self._ended[0].ended_at <= until:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        # Its bytes count as long as somebody is still told it.
        del self._answers[self._ended.popleft().place]

    @property
    def bytes(self) -> int:
        """What all of them hold."""
        return self._budget.bytes

    def __len__(self) -> int:
        return len(self._answers)

    def __repr__(self) -> str:
        return f"<Answers {len(self)}, {self.attached} joined>"


def _may_be_asked_again(status: int) -> bool:
    """An SDK that is told so asks again by itself, with the same key."""
    return status in {408, 425, 429} or status >= 500


def _fingerprint(request: Request, body: bytes) -> bytes:
    """Of what is asked, so that a key cannot fetch the answer to something else."""
    asked = hashlib.sha256(f"{request.method} {without_keys(request.target)}\n".encode())
    asked.update(body)
    return asked.digest()


def _who(request: Request, key_name: str | None) -> str:
    """Whose key it is: nobody gets another's answer by a guess."""
    return identity(request) if key_name is None else f"key {key_name}"
