"""A client that leaves after its answer's own last event had all of it, whatever API it speaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from headrace.client import Connection
from headrace.events import dialects
from headrace.gateway import Gateway
from tests.flow.dialects.model_server import ModelServer
from tests.flow.dialects.words import WORDS, Words
from tests.helpers.requests import JSON
from tests.helpers.serving import httpx_client, origin
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]
Fields = list[tuple[str, str]]
KEYED = [*JSON, ("idempotency-key", "one")]

ENDS = [
    pytest.param(words, last, id=f"{name} {number}")
    for name, words in WORDS.items()
    for number, last in enumerate(words.last)
]


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    """It says no more behind its last event, and does not end its answers."""
    async with ModelServer(ends=False) as started:
        yield started


def causes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of the answers that are over."""
    return [record.fields["cause"] for record in caplog.records if hasattr(record, "fields")]


async def begin(start: Start, model: ModelServer, caplog: pytest.LogCaptureFixture) -> Gateway:
    caplog.set_level("INFO", logger="headrace.access")
    return await start(upstreams=[model.upstream], log={"access": True, "format": "json"})


async def leave_after(
    whole: bytes, http: int, gateway: Gateway, words: Words, fields: Fields, dial: Dial, ca_file: Path
) -> None:
    """Asks, reads so much, and leaves, before the answer has ended."""
    if http == 3:
        response = (await dial(gateway)).request("POST", words.path, fields, b"{}")
        await eventually(lambda: sum(size for _, size in response.arrivals) == len(whole))
        response.stop()
        return
    async with httpx_client(ca_file, http2=http == 2) as client:
        url = origin(gateway) + words.path
        async with client.stream("POST", url, content=b"{}", headers=dict(fields)) as answer:
            got = b""
            async for data in answer.aiter_raw():
                got += data
                if got == whole:
                    return


def test_every_row_of_the_table_is_tried() -> None:
    assert set(WORDS) == set(dialects.dialects())
    for name, words in WORDS.items():
        assert dialects.of(words.path).name == name
        row = dialects.dialects()[name]
        assert all(row.is_last(last) for last in words.last)
        assert not row.is_last(words.token)


@pytest.mark.parametrize(("words", "last"), ENDS)
@pytest.mark.parametrize("http", [3, 2, 1])
async def test_it_is_done_over_any_protocol(
    http: int,
    words: Words,
    last: bytes,
    model: ModelServer,
    start: Start,
    dial: Dial,
    ca_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model.content_type, model.pieces = words.content_type, [words.token, last]
    gateway = await begin(start, model, caplog)
    await leave_after(words.token + last, http, gateway, words, JSON, dial, ca_file)
    await eventually(lambda: causes(caplog) == ["done"], f"causes: {causes(caplog)}")
    await eventually(lambda: model.asked[0].is_left, "the model server was let go")


@pytest.mark.parametrize(("words", "last"), ENDS)
@pytest.mark.parametrize("http", [3, 1])
async def test_its_record_is_whole_and_nothing_is_generated_twice(
    http: int,
    words: Words,
    last: bytes,
    model: ModelServer,
    start: Start,
    dial: Dial,
    ca_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also where a client cannot say that it left on purpose: there is nothing for it to come back for."""
    model.content_type, model.pieces = words.content_type, [words.token, last]
    gateway = await begin(start, model, caplog)
    await leave_after(words.token + last, http, gateway, words, KEYED, dial, ca_file)
    await eventually(lambda: causes(caplog) == ["done"], f"causes: {causes(caplog)}")
    await eventually(lambda: model.asked[0].is_left)
    again = (await dial(gateway)).request("POST", words.path, KEYED, b"{}")
    assert await asyncio.wait_for(again.read(), 10) == words.token + last
    assert len(model.asked) == 1


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
async def test_before_it_a_stop_is_a_stop_whatever_the_model_writes_about_ends(
    words: Words,
    model: ModelServer,
    start: Start,
    dial: Dial,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its record is thrown away, and the next request with its key generates anew."""
    model.content_type, model.pieces = words.content_type, [words.token]
    gateway = await begin(start, model, caplog)
    connection = await dial(gateway)
    for number in (1, 2):
        response = connection.request("POST", words.path, KEYED, b"{}")
        await eventually(lambda response=response: len(response.arrivals) == 1)  # type: ignore[misc]
        response.stop()
        await eventually(lambda number=number: causes(caplog) == ["stopped"] * number)  # type: ignore[misc]
        await eventually(lambda: len(gateway.answers) == 0)
        assert len(model.asked) == number


async def test_an_event_behind_the_mark_takes_it_back(
    model: ModelServer, start: Start, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    """Some proxies put Gemini's `finishReason` into events that others follow."""
    words = WORDS["gemini"]
    model.pieces = [words.last[0], words.token]
    gateway = await begin(start, model, caplog)
    response = (await dial(gateway)).request("POST", words.path, JSON, b"{}")
    await eventually(lambda: len(response.arrivals) == 2)
    response.stop()
    await eventually(lambda: causes(caplog) == ["stopped"])


@pytest.mark.parametrize(
    ("path", "content_type", "last", "cause"),
    [
        ("/unknown", "text/event-stream", b"data: [DONE]\n\n", "done"),
        ("/unknown", "text/event-stream; charset=utf-8", b"data: [DONE]\r\n\r\n", "done"),
        ("/unknown", "application/x-ndjson", b'{"done":true}\n', "done"),
        ("/unknown", "text/event-stream", b"event: message_stop\ndata: {}\n\n", "stopped"),
        ("/api/chat", "text/event-stream", b"data: [DONE]\n\n", "done"),
        ("/v1/messages", "application/json", b"data: [DONE]\n\n", "stopped"),
    ],
)
async def test_a_path_that_tells_nothing_is_taken_by_its_format(
    path: str,
    content_type: str,
    last: bytes,
    cause: str,
    model: ModelServer,
    start: Start,
    dial: Dial,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model.content_type, model.pieces = content_type, [last]
    gateway = await begin(start, model, caplog)
    response = (await dial(gateway)).request("POST", path, JSON, b"{}")
    await eventually(lambda: response.arrivals)
    response.stop()
    await eventually(lambda: causes(caplog) == [cause], f"causes: {causes(caplog)}")
