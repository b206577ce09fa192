"""Requests with an `Idempotency-Key`: one generation for each key.

In: a key, who sent it, and what is asked. Out: the record of the answer that runs, or ended a moment ago; or
a new one. Whoever asks again with the same key, because a connection died or because somebody replayed its
first flight, is told the same answer from its first byte, and nothing is generated twice.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass

from headrace import errors
from headrace.config import Idempotency
from headrace.exchange import Recording, Request

MAX_KEY_LENGTH = 255


@dataclass
class Answer:
    """The answer to one key."""

    recording: Recording
    fingerprint: bytes
    """Of the request."""
    asked: int = 1
    """How often."""
    ended_at: float | None = None


class Keyed:
    """All of them, by who asked and key; the oldest first."""

    def __init__(self, config: Idempotency) -> None:
        self._config = config
        self._answers: OrderedDict[tuple[str, str], Answer] = OrderedDict()
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
        if answer is None:
            return self._begin(place, fingerprint), True
        if answer.fingerprint != fingerprint:
            raise errors.make("idempotency_key_reused")
        if not answer.recording.whole:
            raise errors.make("idempotency_key_too_late")
        answer.asked += 1
        self.attached += 1
        return answer, False

    def end(self, answer: Answer) -> None:
        """It has all it will have. One that never began is forgotten: the key may be tried again."""
        answer.recording.close()
        answer.ended_at = time.monotonic()
        if not answer.recording.begun:
            self._answers = OrderedDict(
                (place, other) for place, other in self._answers.items() if other is not answer
            )

    def _begin(self, place: tuple[str, str], fingerprint: bytes) -> Answer:
        used = sum(answer.recording.bytes for answer in self._answers.values())
        for old, answer in list(self._answers.items()):
            if used + self._config.answer_bytes <= self._config.max_bytes:
                break
            if answer.ended_at is not None:
                used -= answer.recording.bytes
                del self._answers[old]
        if used + self._config.answer_bytes > self._config.max_bytes:
            raise errors.make("overloaded", "idempotency.max_bytes is reached")
        recording = Recording(max_bytes=self._config.answer_bytes, grace=self._config.lost_s)
        answer = self._answers[place] = Answer(recording, fingerprint)
        return answer

    def _forget_old(self) -> None:
        now = time.monotonic()
        for place, answer in list(self._answers.items()):
            if answer.ended_at is not None and now - answer.ended_at >= self._config.kept_s:
                del self._answers[place]

    def __len__(self) -> int:
        return len(self._answers)

    def __repr__(self) -> str:
        return f"<Keyed {len(self)} answers, {self.attached} joined>"


def _fingerprint(request: Request, body: bytes) -> bytes:
    """Of what is asked, so that a key cannot fetch the answer to something else."""
    text = f"{request.method} {request.target}\n".encode()
    return hashlib.sha256(text + body).digest()


def _who(request: Request, key_name: str | None) -> str:
    """Whose key it is: nobody gets another's answer by a guess."""
    if key_name is not None:
        return f"key {key_name}"
    shown = "\n".join(request.header(name) or "" for name in ("authorization", "x-api-key"))
    return hashlib.sha256(shown.encode()).hexdigest()
