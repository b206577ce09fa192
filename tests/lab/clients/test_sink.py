"""What a client of the lab reads of a real model's answer, in each API's words."""

from __future__ import annotations

import pytest

from headrace.events import dialects
from headrace_lab.clients.sink import Sink
from tests.flow.dialects.words import WORDS, Words

each_dialect = pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)


def read(words: Words, body: bytes) -> Sink:
    """Byte by byte: nothing depends on how an answer was cut."""
    sink = Sink(0, 0, "tag", words.path)
    for at in range(len(body)):
        sink.data(at, body[at : at + 1])
    return sink


@each_dialect
def test_tokens_and_the_last_event_are_told_apart(words: Words) -> None:
    for last in words.last:
        sink = read(words, words.token * 3)
        assert (len(sink.tokens), sink.done, sink.said_error) == (3, False, False)
        sink = read(words, words.token * 3 + last)
        assert (sink.done, sink.said_error) == (True, False)


@each_dialect
def test_an_error_is_not_the_last_event(words: Words) -> None:
    body = dialects.error_body(words.path, 503, "gateway_draining", "ask again")
    event = body if words.content_type.endswith("ndjson") else b"event: error\ndata: " + body + b"\n"
    sink = read(words, words.token + event)
    assert (len(sink.tokens), sink.done, sink.said_error) == (1, False, True)
