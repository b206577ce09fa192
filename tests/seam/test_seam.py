"""Between the engine and Python: nothing waits for ever, nothing leaks, every error has its class."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import weakref
from collections.abc import Awaitable, Callable

import pytest

from headrace import Server, _engine, errors
from headrace.client import Trust, connect
from headrace.exchange import Exchange
from headrace.loop import bridge
from tests.helpers.serving import origin
from tests.helpers.waiting import eventually

Serve = Callable[..., Awaitable[Server]]


def test_every_kind_of_error_has_its_class_and_its_fields() -> None:
    assert set(errors.CLASSES) == set(errors.kinds())
    for slug, kind in errors.kinds().items():
        error = errors.make(slug, "seen")
        assert isinstance(error, errors.CLASSES[slug])
        assert error.kind == kind
        assert "seen" in str(error)
        assert pickle.loads(pickle.dumps(error)).kind == kind
        assert kind.side in ("client", "us", "upstream", "server")


def test_errors_are_what_others_would_catch() -> None:
    assert issubclass(errors.ConnectTimeoutError, TimeoutError)
    assert issubclass(errors.ConnectTimeoutError, ConnectionError)
    assert issubclass(errors.UpstreamTimeoutError, TimeoutError)
    assert issubclass(errors.ConnectionLostError, ConnectionError)


def test_the_binary_says_what_it_is() -> None:
    info = dict(_engine.build_info())
    assert info["profile"] in ("release", "debug")
    assert info["version"]


async def test_a_handle_that_is_collected_resets_its_answer(serve: Serve, trust: Trust) -> None:
    """Dropping resets, never finishes."""
    kept: list[Exchange] = []

    async def leak(exchange: Exchange) -> None:
        await exchange.respond(200, [])
        await exchange.send(b"half")
        kept.append(exchange)
        await asyncio.sleep(60)

    server = await serve(leak)
    connection = await connect(origin(server), trust)
    response = connection.request("GET", "/")
    await response.head()
    await eventually(lambda: kept)
    for task in server._tasks:
        task.cancel()
    kept.clear()
    gc.collect()
    with pytest.raises(errors.StreamResetError):
        await response.read()
    connection.close()


async def test_a_cancelled_call_leaves_the_exchange_usable_by_nobody_and_leaks_nothing(
    serve: Serve, trust: Trust
) -> None:
    async def impatient(exchange: Exchange) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(exchange.gone(), 0.01)
        await exchange.answer(200, [], b"after all")

    server = await serve(impatient)
    connection = await connect(origin(server), trust)
    assert await connection.request("GET", "/").read() == b"after all"
    await eventually(lambda: server.snapshot()["exchanges"] == 0)
    connection.close()


async def test_a_call_out_of_turn_is_refused_at_once(serve: Serve, trust: Trust) -> None:
    async def two_at_once(exchange: Exchange) -> None:
        body = exchange.body()
        late = exchange.send(b"x")
        with pytest.raises(errors.UsageError):
            await late
        await asyncio.gather(body, return_exceptions=True)
        await exchange.answer(200, [], b"")

    server = await serve(two_at_once)
    connection = await connect(origin(server), trust)
    assert await connection.request("POST", "/", body=b"abc").head() == 200
    connection.close()


async def test_a_flood_of_calls_is_refused_not_queued(serve: Serve, trust: Trust) -> None:
    """Four calls may wait on one exchange; the fifth is told so, at once or a moment later."""
    refused = asyncio.get_running_loop().create_future()

    async def flood(exchange: Exchange) -> None:
        count, waiting = 0, []
        for _ in range(50):
            try:
                waiting.append(exchange.gone())
            except errors.UsageError:
                count += 1
        await asyncio.sleep(0.05)
        await exchange.answer(200, [], b"")
        results = await asyncio.gather(*waiting, return_exceptions=True)
        # The four that waited hear that the exchange is closed.
        refused.set_result(count + sum("awaited too many times" in str(result) for result in results))

    server = await serve(flood)
    connection = await connect(origin(server), trust)
    assert await connection.request("GET", "/").head() == 200
    assert await refused == 46
    connection.close()


async def test_objects_are_freed_with_their_requests(serve: Serve, trust: Trust) -> None:
    seen: list[weakref.ref[object]] = []

    class Marker:
        pass

    async def handler(exchange: Exchange) -> None:
        marker = Marker()
        seen.append(weakref.ref(marker))
        await exchange.answer(200, [], b"")

    server = await serve(handler)
    connection = await connect(origin(server), trust)
    for _ in range(100):
        await connection.request("GET", "/").read()
    await asyncio.sleep(0.05)
    gc.collect()
    assert sum(ref() is not None for ref in seen) == 0
    assert "0 awaited, 0 queued" in repr(bridge())
    connection.close()


async def test_the_loop_may_be_busy_without_harm(serve: Serve, trust: Trust) -> None:
    """While Python computes, the engine goes on; nothing is lost when the loop comes back."""
    import time

    async def handler(exchange: Exchange) -> None:
        await exchange.answer(200, [], b"x" * 1000)

    server = await serve(handler)
    connection = await connect(origin(server), trust)
    responses = [connection.request("GET", "/") for _ in range(50)]
    time.sleep(0.3)
    assert [len(await response.read()) for response in responses] == [1000] * 50
    connection.close()


def test_every_loop_has_a_bridge_of_its_own_and_leaves_no_descriptor() -> None:
    import os

    async def use() -> int:
        return bridge().fileno()

    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        asyncio.run(use())
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_without_a_loop_the_error_is_pythons_own() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        bridge()


async def test_two_servers_in_two_threads_do_not_meet(
    serve: Serve, trust: Trust, certificate: object
) -> None:
    from tests.helpers.serving import config

    async def name_of(exchange: Exchange) -> None:
        await exchange.answer(200, [], threading.current_thread().name.encode())

    first = await serve(name_of)
    answers: list[bytes] = []

    def other() -> None:
        async def run() -> None:
            async with Server(config(), certificate.chain_pem, certificate.key_pem, name_of) as second:
                async with await connect(origin(second), trust) as connection:
                    answers.append(await connection.request("GET", "/").read())

        asyncio.run(run())

    thread = threading.Thread(target=other, name="other")
    thread.start()
    while thread.is_alive():
        await asyncio.sleep(0.01)
    async with await connect(origin(first), trust) as connection:
        answers.append(await connection.request("GET", "/").read())
    assert answers == [b"other", b"MainThread"]


async def test_what_is_raised_for_one_exchange_is_told_and_costs_no_other(
    serve: Serve, trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are handed over in batches; the rest of a batch is handed over, too."""
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
    begin, seen = Server._begin, 0

    def begin_or_fail(server: Server, exchange: Exchange) -> None:
        nonlocal seen
        seen += 1
        if seen % 2:
            raise MemoryError("on purpose")
        begin(server, exchange)

    monkeypatch.setattr(Server, "_begin", begin_or_fail)

    async def answer(exchange: Exchange) -> None:
        await exchange.answer(200, [], b"yes")

    async def ask() -> int:
        response = connection.request("GET", "/")
        try:
            return await response.head() or 0
        except errors.StreamError:
            return 0

    server = await serve(answer)
    connection = await connect(origin(server), trust)
    statuses = await asyncio.gather(*(ask() for _ in range(40)))
    assert sorted(statuses) == [0] * 20 + [200] * 20
    assert told == ["MemoryError('on purpose')"] * 20
    connection.close()
