"""Stop means stop: one stream's end ends its generation at once, and its neighbours do not notice."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.client import Connection
from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.answers import expected
from tests.helpers.raw_peer import DATA, HEADERS, frame, post, section
from tests.helpers.raw_peer import dial as raw_dial
from tests.helpers.requests import JSON, PATH, script
from tests.helpers.serving import httpx_client, origin, port_of
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]

ENDLESS = {"events": 1_000_000, "interval_s": 0.005}
PREFILL = {"events": 5, "head_delay_s": 60.0}


@pytest.mark.parametrize("fields", [ENDLESS, PREFILL], ids=["streaming", "silent prefill"])
async def test_stop_sending_closes_the_upstream(
    fields: dict[str, float], source: Source, gateway: Gateway, dial: Dial
) -> None:
    response = (await dial(gateway)).request("POST", PATH, JSON, script(**fields))
    await eventually(lambda: source.runs)
    if fields is ENDLESS:
        await response.head()
    response.stop()
    await eventually(lambda: source.runs[0].aborted_ns)
    await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0)
    assert all(upstream.in_flight == 0 for upstream in gateway.upstreams.all)


MOST_ROUND_TRIPS = 3
"""How many requests on the same connection, one after the other, may be answered until a stop has arrived at
the model server. It should be there before the first answer; a timer of 10 ms would be some twenty
answers."""


@pytest.mark.parametrize("fields", [ENDLESS, PREFILL], ids=["streaming", "silent prefill"])
async def test_a_stop_is_at_the_model_server_within_a_few_round_trips(
    fields: dict[str, float], source: Source, gateway: Gateway, dial: Dial
) -> None:
    """Counted in round trips of its own connection, which take longer on a busy machine, as the stop does."""
    connection = await dial(gateway)
    for number in range(10):
        response = connection.request("POST", PATH, JSON, script(**fields))
        await eventually(lambda: len(source.running()) == 1)
        if fields is ENDLESS:
            await response.head()
        response.stop()
        round_trips = 0
        while source.running():
            await connection.request("GET", "/healthz").read()
            round_trips += 1
        assert round_trips <= MOST_ROUND_TRIPS, number


@pytest.mark.parametrize("how", ["stop", "reset", "both", "close"])
async def test_every_way_to_cancel_over_http3(how: str, source: Source, gateway: Gateway) -> None:
    """STOP_SENDING after the request; RESET_STREAM instead of its end; both; the connection closed."""
    async with raw_dial(port_of(gateway)) as peer:
        peer.start_control()
        is_whole = how in ("stop", "close")
        stream = peer.bidi(frame(HEADERS, section(*post())) + frame(DATA, script(**ENDLESS)), end=is_whole)
        if is_whole:
            await peer.until(lambda: b'"n":3' in peer.data.get(stream, b""))
        else:
            await eventually(lambda: gateway.server.snapshot()["exchanges"] == 1)
        if how in ("stop", "both"):
            peer.stop(stream)
        if how in ("reset", "both"):
            peer.reset(stream)
        if how == "close":
            peer.close()
        await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0)
        await eventually(lambda: not source.running())
        if how != "close":
            again = peer.bidi(frame(HEADERS, section(*post())) + frame(DATA, script(events=1)), end=True)
            await peer.until_over(again)
            assert b"[DONE]" in peer.data[again], "the connection serves the next request"


@pytest.mark.parametrize("http2", [True, False])
@pytest.mark.parametrize("fields", [ENDLESS, PREFILL], ids=["streaming", "silent prefill"])
async def test_cancel_over_tcp(
    fields: dict[str, float], http2: bool, source: Source, gateway: Gateway, ca_file: Path
) -> None:
    """RST_STREAM by HTTP/2, a closed connection by HTTP/1.1."""
    if http2:
        await _cancel_by_rst_stream(port_of(gateway), script(**fields), source)
    else:
        async with httpx_client(ca_file, http2=False) as client:
            request = client.post(origin(gateway) + PATH, content=script(**fields), headers=dict(JSON))
            task = asyncio.create_task(request)
            await eventually(lambda: source.runs)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    await eventually(lambda: source.runs[0].aborted_ns)
    await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0)


async def _cancel_by_rst_stream(port: int, body: bytes, source: Source) -> None:
    """By h2 itself: httpx2 never sends RST_STREAM."""
    import ssl

    import h2.config
    import h2.connection

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    connection.initiate_connection()
    fields = [(name.decode(), value.decode()) for name, value in post()]
    connection.send_headers(1, fields)
    connection.send_data(1, body, end_stream=True)
    writer.write(connection.data_to_send())
    await eventually(lambda: source.runs)
    connection.receive_data(await reader.read(65536))
    connection.reset_stream(1, error_code=8)
    writer.write(connection.data_to_send())
    await eventually(lambda: source.runs[0].aborted_ns)
    # The connection lives on.
    probe = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/healthz")]
    connection.send_headers(3, probe, end_stream=True)
    writer.write(connection.data_to_send())
    got = b""
    while b'"status"' not in got:
        got += await asyncio.wait_for(reader.read(65536), 5)
    writer.close()


async def test_a_thousand_stops_free_a_thousand_slots_and_disturb_nobody(
    source: Source, start: Start, dial: Dial
) -> None:
    """At random phases, silent prefill among them; eight neighbours on the same connection arrive byte by
    byte."""
    # Connections that are kept ready for the next requests would be descriptors, too.
    gateway = await start(source, limits={"cancel_burst": 2000}, pool={"warm_s": 0})
    connection = await dial(gateway)
    chance = random.Random(7)
    neighbours_fields = {"events": 400, "interval_s": 0.01}
    before = len(os.listdir("/proc/self/fd"))

    async def neighbour() -> None:
        response = connection.request("POST", PATH, JSON, script(**neighbours_fields))
        whole = await response.read()
        assert whole == expected(whole, **neighbours_fields)

    async def victims() -> None:
        for _ in range(50):
            fields = PREFILL if chance.random() < 0.3 else ENDLESS
            response = connection.request("POST", PATH, JSON, script(**fields))
            await asyncio.sleep(chance.random() * 0.03)
            response.stop()

    await asyncio.gather(*(neighbour() for _ in range(8)), *(victims() for _ in range(20)))
    await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0)
    await eventually(lambda: not source.running(), "no generation goes on")
    aborted = [run for run in source.runs if run.aborted_ns]
    ended = [run for run in source.runs if run.ended_ns]
    assert len(ended) == 8
    assert len(aborted) == len(source.runs) - 8
    left = gateway.server.snapshot()
    assert left["buffered_bytes"] == 0
    assert left["exchanges_total"] >= 900, "too many were stopped before they reached the gateway"
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before + 20, "no descriptor is left behind")


async def test_dropping_the_response_stops_it_too(source: Source, gateway: Gateway, dial: Dial) -> None:
    response = (await dial(gateway)).request("POST", PATH, JSON, script(**ENDLESS))
    await response.head()
    del response
    await eventually(lambda: source.runs[0].aborted_ns)


async def test_a_client_that_vanishes_is_lost_and_frees_its_slot(source: Source, start: Start) -> None:
    """No word of farewell: the connection idles out."""
    gateway = await start(source, timeouts={"idle_s": 1.0})
    async with raw_dial(port_of(gateway)) as peer:
        peer.start_control()
        stream = peer.bidi(frame(HEADERS, section(*post())) + frame(DATA, script(**ENDLESS)), end=True)
        await peer.until(lambda: stream in peer.data)
        transport = peer._transport
        assert transport is not None
        peer._quic.datagrams_to_send = lambda now: []  # type: ignore[method-assign]
        await eventually(lambda: source.runs[0].aborted_ns)
        await eventually(lambda: gateway.server.snapshot()["connections"] == 0)


async def test_who_leaves_after_the_last_event_was_not_cut_short(
    start: Start, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenAI's SDK closes at `[DONE]`, which may be before the body's end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if b"GET" not in request:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(head + b"9\r\ndata: 1\n\n\r\n" + b"e\r\ndata: [DONE]\n\n\r\n")
            await reader.read()
        writer.close()

    model = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with Source() as source:
        source_like = {"url": f"http://127.0.0.1:{model.sockets[0].getsockname()[1]}", "models": ["scripted"]}
        gateway = await start(source, upstreams=[source_like], log={"access": True})
        caplog.set_level("INFO", logger="headrace.access")
        response = (await dial(gateway)).request("POST", PATH, JSON, script())
        await eventually(lambda: len(response.arrivals) == 2)
        response.stop()
        await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0)
        await eventually(lambda: any("done" in record.getMessage() for record in caplog.records))
    model.close()
