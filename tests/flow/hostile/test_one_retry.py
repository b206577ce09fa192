"""One budget of tries for each request: no request is run again that may have been processed, and the best of
the failures is told."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Trust, connect
from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.asking import PROTOCOLS, Told, ask
from tests.helpers.hostile import Call, Hostile, HostileHttp2, Stream, silent_address, whole
from tests.helpers.requests import JSON, PATH
from tests.helpers.serving import origin
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]

BODY = b'{"model":"scripted"}'
OK = whole(b"ok")


async def warm(gateway: Gateway, ca_file: Path, server: Hostile, count: int) -> None:
    """Leaves so many idle connections to the model server."""
    calls = [ask(gateway, "HTTP/2", ca_file, BODY) for _ in range(count)]
    assert all(told.status == 200 for told in await asyncio.gather(*calls))
    server.calls.clear()


def upstream(server: Hostile, **fields: Any) -> dict[str, Any]:
    kind = {"protocol": "http2"} if isinstance(server, HostileHttp2) else {}
    return {"url": server.url, "models": "scripted", "health_interval_s": 3600, **kind, **fields}


async def work_and_close(call: Call) -> None:
    await asyncio.sleep(0.25)
    call.close()


async def close_at_once(call: Call) -> None:
    call.close()


async def abort_at_once(call: Call) -> None:
    sock = call.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    call.abort()


async def go_on_and_close(call: Call) -> None:
    await call.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    call.close()


async def half_a_head(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\n")
    call.close()


DEATHS = {
    "works, and closes without a byte": work_and_close,
    "closes at once": close_at_once,
    "resets at once": abort_at_once,
    "says 100, and closes": go_on_and_close,
    "closes inside its head": half_a_head,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS.keys())
async def test_a_request_that_may_have_been_processed_is_run_once(
    death: Callable[[Call], Awaitable[None]],
    protocol: str,
    start: Start,
    ca_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Twelve warm connections, each of which dies with the request that it is given: one run, a reason."""
    caplog.set_level(logging.INFO)
    dies = asyncio.Event()

    async def serve(call: Call) -> None:
        if dies.is_set():
            await death(call)
        else:
            await asyncio.sleep(0.1)  # So that all of them need a connection of their own.
            await call.send(OK)

    async with Hostile(serve) as server:
        gateway = await start(upstreams=[upstream(server)], listen={"workers": 1})
        await warm(gateway, ca_file, server, 12)
        dies.set()
        before = gateway.server.snapshot()["runs_total"]
        told = await ask(gateway, protocol, ca_file, BODY)
        assert (told.status, json.loads(told.body)["error"]["code"]) == (502, "upstream_closed")
        assert len(server.calls) == 1
        assert gateway.server.snapshot()["runs_total"] == before + 1
        assert gateway.server.snapshot()["repeats_total"] == 0
    await eventually(lambda: " 502 upstream_closed " in caplog.text)
    assert re.search(r" 502 upstream_closed .* runs=1\b", caplog.text)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS.keys())
async def test_with_another_upstream_it_is_run_there_once(
    death: Callable[[Call], Awaitable[None]], protocol: str, start: Start, ca_file: Path
) -> None:
    """As documented: one more at another upstream, before the first byte; never a third."""
    dies = asyncio.Event()

    async def serve(call: Call) -> None:
        if dies.is_set():
            await death(call)
        else:
            await call.send(OK)

    async with Hostile(serve) as first, Hostile(serve) as second:
        gateway = await start(upstreams=[upstream(first), upstream(second)], listen={"workers": 1})
        await warm(gateway, ca_file, first, 6)
        second.calls.clear()
        dies.set()
        told = await ask(gateway, protocol, ca_file, BODY)
        assert told.status == 502
        assert (len(first.calls), len(second.calls)) == (1, 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_idle_connection_that_was_closed_is_nobodys_failure(
    protocol: str, start: Start, ca_file: Path
) -> None:
    """The model server closes every idle connection just as the request is on its way to it: its system has
    acknowledged nothing, so it is sent once more."""
    transports: list[Any] = []

    async def serve(call: Call) -> None:
        transports.append(call.writer.transport)
        await call.send(OK)

    async with Hostile(serve) as server:
        gateway = await start(upstreams=[upstream(server)], listen={"workers": 1}, pool={"warm_s": 0})
        for _ in range(5):
            await ask(gateway, protocol, ca_file, BODY)
            closed = transports.pop()
            closed.close()
            told = await ask(gateway, protocol, ca_file, BODY)
            assert (told.status, told.body) == (200, b"ok")
        assert len(server.calls) == 10, "each was run once"


async def refuse(stream: Stream) -> None:
    stream.reset(0x7)


async def refuse_after_its_head(stream: Stream) -> None:
    stream.head(200, ("content-type", "text/event-stream"))
    stream.data(b"data: 1\n\n")
    await asyncio.sleep(0.05)
    stream.reset(0x7)


async def go_away_below(stream: Stream) -> None:
    stream.goaway(max(0, stream.id - 2))
    await asyncio.sleep(0.05)
    stream.close()


async def go_away_with_it(stream: Stream) -> None:
    stream.goaway(stream.id)
    await asyncio.sleep(0.05)
    stream.close()


async def cancel(stream: Stream) -> None:
    stream.reset(0x8)


async def no_error(stream: Stream) -> None:
    stream.reset(0x0)


async def fail(stream: Stream) -> None:
    stream.reset(0x2)


async def close(stream: Stream) -> None:
    stream.close()


HTTP2_DEATHS = {
    "REFUSED_STREAM": (refuse, 2),
    "GOAWAY below it": (go_away_below, 2),
    "REFUSED_STREAM after its head": (refuse_after_its_head, 1),
    "GOAWAY that names it": (go_away_with_it, 1),
    "CANCEL": (cancel, 1),
    "NO_ERROR": (no_error, 1),
    "INTERNAL_ERROR": (fail, 1),
    "the connection's end": (close, 1),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("death", "runs"), HTTP2_DEATHS.values(), ids=HTTP2_DEATHS.keys())
async def test_over_http2_only_what_was_provably_not_processed_is_run_again(
    death: Callable[[Stream], Awaitable[None]], runs: int, protocol: str, start: Start, ca_file: Path
) -> None:
    """RFC 9113 §6.8, §8.7: refused, or above GOAWAY's last stream. Once more, and then it is told."""
    async with HostileHttp2(death) as server:
        gateway = await start(upstreams=[upstream(server)], listen={"workers": 1})
        told = await ask(gateway, protocol, ca_file, BODY)
        assert not (told.is_whole and told.status == 200)
        assert len(server.calls) == runs
        assert gateway.server.snapshot()["runs_total"] == runs
        assert gateway.server.snapshot()["repeats_total"] == runs - 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("death", [refuse, go_away_below], ids=["REFUSED_STREAM", "GOAWAY"])
async def test_what_was_refused_once_is_answered_at_the_second_try(
    death: Callable[[Stream], Awaitable[None]],
    protocol: str,
    start: Start,
    ca_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def serve(stream: Stream) -> None:
        if len(server.calls) == 1:
            await death(stream)
            return
        stream.head(200)
        stream.data(b"ok", end=True)

    async with HostileHttp2(serve) as server:
        gateway = await start(upstreams=[upstream(server)])
        told = await ask(gateway, protocol, ca_file, BODY)
        assert (told.status, told.body, len(server.calls)) == (200, b"ok", 2)
    await eventually(lambda: " runs=2 " in caplog.text, "each run is in the log")


def failing(status: str, *fields: str, body: bytes = b"its own words") -> Callable[[Call], Awaitable[None]]:
    async def serve(call: Call) -> None:
        await call.send(whole(body, status, *fields))

    return serve


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("status", [429, 500, 501, 502, 503, 504, 507, 520, 529, 599])
async def test_a_failing_answer_is_bettered_elsewhere_where_another_is_healthy(
    status: int, protocol: str, start: Start, ca_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Hostile(failing(f"{status} X")) as busy, Hostile(failing("200 OK")) as free:
        gateway = await start(upstreams=[upstream(busy, name="busy"), upstream(free, name="free")])
        for _ in range(2):
            told = await ask(gateway, protocol, ca_file, BODY)
            assert (told.status, told.body) == (200, b"its own words")
        assert (len(busy.calls), len(free.calls)) == (1, 2)
    await eventually(lambda: f"tried=busy:{status},free:200" in caplog.text, "each run is in the log")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 413, 422, 428, 431])
async def test_a_request_that_is_at_fault_is_not_tried_elsewhere(
    status: int, start: Start, ca_file: Path
) -> None:
    async with Hostile(failing(f"{status} X")) as first, Hostile(failing(f"{status} X")) as second:
        gateway = await start(upstreams=[upstream(first), upstream(second)])
        told = await ask(gateway, "HTTP/2", ca_file, BODY)
        assert (told.status, len(first.calls) + len(second.calls)) == (status, 1)


BUSY = failing("429 Too Many Requests", "retry-after: 17", "x-its: 1")
BEST = {
    "a 429 before a dead one": (BUSY, close_at_once, 429),
    "a 429 behind a dead one": (close_at_once, BUSY, 429),
    "a 429 before a 500": (BUSY, failing("500 X"), 429),
    "a 429 behind a 500": (failing("500 X"), BUSY, 429),
    "a 429 before a 503": (BUSY, failing("503 X"), 429),
    "a 429 before one without a time": (BUSY, failing("429 X"), 429),
    "a 429 behind one without a time": (failing("429 X"), BUSY, 429),
    "a 503 before a 500": (failing("503 X"), failing("500 X"), 503),
    "a 529 behind a 502": (failing("502 X"), failing("529 X"), 529),
    "a 500 before a dead one": (failing("500 X"), close_at_once, 500),
    "two dead ones": (close_at_once, close_at_once, 502),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("first", "second", "status"), BEST.values(), ids=BEST.keys())
async def test_the_best_of_the_failures_is_told(
    first: Any, second: Any, status: int, protocol: str, start: Start, ca_file: Path
) -> None:
    """In the model server's own words, with its `Retry-After`."""
    async with Hostile(first) as one, Hostile(second) as other:
        gateway = await start(upstreams=[upstream(one), upstream(other)])
        for _ in range(2):  # Each is the first of its turn.
            told = await ask(gateway, protocol, ca_file, BODY)
            assert (told.status, told.is_whole) == (status, True)
            if BUSY in (first, second):
                assert (told.headers["retry-after"], told.headers["x-its"]) == ("17", "1")
            if status not in (502,):
                assert told.body == b"its own words"
        assert (len(one.calls), len(other.calls)) == (2, 2)


async def long_words(call: Call) -> None:
    await call.send(whole(b"x" * 1_000_000, "429 X", "retry-after: 17"))


async def slow_words(call: Call) -> None:
    await call.send(b"HTTP/1.1 429 X\r\ncontent-length: 5\r\nretry-after: 17\r\n\r\nxx")
    await asyncio.sleep(60)


async def broken_words(call: Call) -> None:
    await call.send(b"HTTP/1.1 429 X\r\ncontent-length: 5\r\nretry-after: 17\r\n\r\nxx")
    call.close()


@pytest.mark.parametrize("words", [long_words, slow_words, broken_words])
async def test_of_a_failure_that_says_too_much_its_status_and_its_time_are_told(
    words: Callable[[Call], Awaitable[None]], start: Start, ca_file: Path
) -> None:
    async with Hostile(words) as one, Hostile(close_at_once) as other:
        # The last one in the list is asked first.
        gateway = await start(upstreams=[upstream(other), upstream(one)])
        told = await ask(gateway, "HTTP/2", ca_file, BODY)
        assert (told.status, told.headers["retry-after"], told.is_whole) == (429, "17", True)
        assert len(told.body) < 1000


async def test_a_failing_answer_is_relayed_when_no_other_is_healthy(start: Start, ca_file: Path) -> None:
    async with Hostile(BUSY) as busy:
        dead = Source()
        async with dead:
            pass
        gateway = await start(upstreams=[upstream(busy), {"url": dead.url, "models": "scripted"}])
        assert not gateway.upstreams.all[1].is_healthy
        told = await ask(gateway, "HTTP/2", ca_file, BODY)
        assert (told.status, told.headers["retry-after"]) == (429, "17")


async def test_the_second_address_of_a_name_is_tried_when_the_first_is_silent(
    start: Start, ca_file: Path
) -> None:
    """`localhost` is ::1 and 127.0.0.1 (RFC 8305): one of them answers no handshake."""
    async with silent_address("::1") as port, Source(host="127.0.0.1", port=port):
        name = {"url": f"http://localhost:{port}", "models": "scripted"}
        gateway = await start(upstreams=[name], timeouts={"connect_s": 5})
        assert gateway.upstreams.all[0].is_healthy
        assert (await ask(gateway, "HTTP/2", ca_file, BODY)).status == 200


@pytest.fixture
async def few_descriptors() -> AsyncIterator[Callable[[], None]]:
    """No more descriptors for this process, until the test ends."""
    import os

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def take() -> None:
        used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
        # Those that are free below it.
        while True:
            try:
                held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                return

    held: list[int] = []
    yield take
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for descriptor in held:
        os.close(descriptor)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_what_we_lack_ourselves_is_not_blamed_on_the_model_server(
    host: str,
    start: Start,
    ca_file: Path,
    few_descriptors: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No descriptor: 503 `overloaded`; the upstream stays healthy, and no other one is bothered."""
    caplog.set_level(logging.INFO)
    async with Source() as source:
        names = {"models": "scripted", "health_interval_s": 0.05}
        urls = [{"url": f"http://{host}:{source.port}", **names}, {"url": source.url, "name": "x", **names}]
        gateway = await start(
            upstreams=urls, pool={"warm_s": 0, "idle_per_upstream": 0}, listen={"workers": 1}
        )
        connection = await connect(origin(gateway), Trust(ca_file))
        response = connection.request("POST", PATH, list(JSON), BODY)
        assert await response.head() == 200
        await response.read()
        few_descriptors()
        response = connection.request("POST", PATH, list(JSON), BODY)
        assert await response.head() == 503
        assert json.loads(await response.read())["error"]["code"] == "overloaded"
        assert response.header("retry-after") == "1"
        await eventually(lambda: "cannot be asked how it is" in caplog.text, "the probes lack it, too")
        assert all(upstream.is_healthy for upstream in gateway.upstreams.all)
        connection.close()
    assert " 503 overloaded " in caplog.text


def test_told_is_what_it_says() -> None:
    """A helper that called every answer whole would make all of the above pass."""
    assert Told() == Told(0, {}, b"", False)
