"""The gateway goes away: nobody is cut who ends in time, and who is cut is told so."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aioquic.buffer import encode_uint_var

from headrace.client import Connection, Trust, connect
from headrace.errors import ConnectError, StreamResetError
from headrace.gateway import Gateway
from headrace_lab.model import Script, Source, body_of
from tests.helpers import raw_peer
from tests.helpers.command_line import Serving
from tests.helpers.raw_http2 import RawHttp2
from tests.helpers.requests import JSON, script
from tests.helpers.serving import origin, port_of
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]
LONG: dict[str, Any] = {"events": 3000, "interval_s": 0.02}
TOLD = "the gateway went away before the answer was complete; ask again"


@pytest.fixture
def http1(ca_file: Path) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(verify=ssl.create_default_context(cafile=ca_file))


@pytest.fixture
def http2(ca_file: Path) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(verify=ssl.create_default_context(cafile=ca_file), http1=False, http2=True)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "HEADRACE_TIMEOUTS__DRAIN_S": "30"}


async def test_two_hundred_streams_run_to_their_end(start: Start, trust: Trust) -> None:
    """Tokens each 20 ms: every byte, FIN, and then the connections are closed."""
    count, events = 200, 60
    async with Source() as source:
        gateway = await start(source, listen={"workers": 2})
        connections = [await connect(origin(gateway), trust) for _ in range(4)]

        def body(number: int) -> bytes:
            fields = {"events": events, "interval_s": 0.02, "note_times": True}
            return json.dumps({"model": "scripted", "tag": str(number), "script": fields}).encode()

        answers = [
            connections[number % 4].request("POST", "/v1/x", JSON, body(number)) for number in range(count)
        ]
        assert set(await asyncio.gather(*(answer.head() for answer in answers))) == {200}
        drained = asyncio.create_task(gateway.drain())
        bodies = await asyncio.gather(*(answer.read() for answer in answers))
        assert await drained == 0
        sent = {run.tag: run.times_ns for run in source.runs}
        expected = [body_of(Script(events=events), sent[str(number)]) for number in range(count)]
        assert bodies == expected
        await eventually(lambda: not any(connection.is_open for connection in connections))


@pytest.mark.parametrize("framing", ["sse", "ndjson", "raw"])
async def test_who_outlives_the_grace_time_is_told_and_reset(
    framing: str, source: Source, start: Start, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    """A last error event where the framing has a place for it, never FIN; the model server is let go; and the
    log says whose doing it was."""
    caplog.set_level(logging.INFO, "headrace.access")
    gateway = await start(source, timeouts={"drain_s": 0.2})
    answer = (await dial(gateway)).request("POST", "/v1/x", JSON, script(**LONG, framing=framing))
    await answer.head()
    drained = asyncio.create_task(gateway.drain())
    body = b""
    with pytest.raises(StreamResetError, match="H3_REQUEST_CANCELLED"):
        async for batch in answer.chunks():
            body += b"".join(chunk.data for chunk in batch)
    assert await drained == 1
    error = {"message": TOLD, "type": "overloaded_error", "param": None, "code": "gateway_draining"}
    if framing == "sse":
        last = body.split(b"\n\n")[-2]
        assert last.startswith(b"event: error\ndata: ")
        assert json.loads(last.partition(b"data: ")[2]) == {"type": "error", "error": error}
    elif framing == "ndjson":
        assert json.loads(body.splitlines()[-1]) == {"error": TOLD, "code": "gateway_draining"}
    else:
        assert TOLD.encode() not in body
    await eventually(lambda: source.runs[-1].aborted_ns)
    assert " 200 cut " in caplog.messages[-1]
    assert "error=gateway_draining" in caplog.messages[-1]


@pytest.mark.parametrize("version", ["http1", "http2"])
async def test_who_outlives_it_over_tcp_is_told_and_broken_off(
    version: str, source: Source, start: Start, request: pytest.FixtureRequest
) -> None:
    # Hurried: half the grace time brings GOAWAY, and Python's h2 cannot read on after that.
    gateway = await start(source, timeouts={"drain_s": 600})
    body = b""
    async with request.getfixturevalue(version) as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            async with client.stream(
                "POST", f"{origin(gateway)}/v1/x", content=script(**LONG), headers=dict(JSON)
            ) as answer:
                drained = asyncio.create_task(gateway.drain())
                hurried = None
                async for data in answer.aiter_raw():
                    body += data
                    hurried = hurried or asyncio.create_task(gateway.drain_now())
    assert await drained == 1
    assert body.endswith(b"}}\n\n")
    assert TOLD.encode() in body.split(b"\n\n")[-2]


async def test_who_still_waits_for_the_first_token_is_answered_503(
    source: Source, start: Start, dial: Dial
) -> None:
    """Nothing of the answer was there: it can be asked again as it is."""
    gateway = await start(source, timeouts={"drain_s": 0.2})
    answer = (await dial(gateway)).request("POST", "/v1/x", JSON, script(head_delay_s=60))
    await eventually(lambda: source.runs)
    drained = asyncio.create_task(gateway.drain())
    assert await answer.head() == 503
    assert answer.header("retry-after") == "1"
    error = json.loads(await answer.read())["error"]
    assert (error["code"], error["message"]) == ("gateway_draining", TOLD)
    assert await drained == 1
    await eventually(lambda: source.runs[-1].aborted_ns)


async def test_connections_over_tcp_end_between_two_answers(
    source: Source, start: Start, http1: httpx2.AsyncClient, http2: httpx2.AsyncClient
) -> None:
    """Running answers come to their end, with `connection: close` where they begin late; nothing is cut."""
    gateway = await start(source)
    url = f"{origin(gateway)}/v1/x"
    slow = script(events=5, head_delay_s=0.5)
    async with http1, http2:
        running = [
            asyncio.create_task(client.post(url, content=slow, headers=dict(JSON)))
            for client in (http1, http2)
        ]
        await eventually(lambda: len(source.runs) == 2)
        # A second connection of HTTP/1.1, for the one that is there is busy.
        assert (await http1.get(f"{origin(gateway)}/readyz")).status_code == 200
        drained = asyncio.create_task(gateway.drain())
        answers = [await task for task in running]
        assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
        assert [answer.headers.get("connection") for answer in answers] == ["close", None]
        assert await drained == 0
        with pytest.raises(httpx2.ConnectError):
            await http1.get(f"{origin(gateway)}/readyz")


async def test_http3_is_told_in_two_steps(source: Source, start: Start) -> None:
    """First a GOAWAY that refuses nothing; then one that names the first request that is not taken. That one
    is rejected untouched, and what was taken is answered."""
    gateway = await start(source)
    body = script(events=150)
    async with raw_peer.dial(port_of(gateway)) as peer:
        peer.start_control()
        head = raw_peer.frame(raw_peer.HEADERS, raw_peer.section(*raw_peer.post()))
        running = peer.bidi(head + raw_peer.frame(raw_peer.DATA, body), end=True)
        await peer.until(lambda: peer.data.get(running))
        drained = asyncio.create_task(gateway.drain())
        told = [raw_peer.frame(raw_peer.GOAWAY, encode_uint_var(id)) for id in (2**62 - 4, running + 4)]
        await peer.until(lambda: peer.data.get(3, b"").endswith(b"".join(told)))
        late = peer.bidi(raw_peer.frame(raw_peer.HEADERS, raw_peer.section(*raw_peer.GET)), end=True)
        await peer.until_over(late)
        assert peer.resets[late] == 0x10B
        await peer.until_over(running)
        assert peer.data[running].endswith(b"data: [DONE]\n\n")
        assert await peer.until_closed() == 0x100
    assert await drained == 0
    assert len(source.runs) == 1


async def test_http2_is_told_in_two_steps(source: Source, start: Start, ca_file: Path) -> None:
    """First a GOAWAY that refuses nothing; then one that names the last request, which is answered."""
    gateway = await start(source)
    raw = await RawHttp2.connect(port_of(gateway), ca_file)
    await raw.get(1, "/healthz")
    assert await raw.ended(1) == 200
    drained = asyncio.create_task(gateway.drain())
    assert await raw.goaway() == (2**31 - 1, 0)
    await raw.get(3, "/healthz")
    assert await raw.ended(3) == 200
    await raw.answer_pings()
    assert await raw.goaway() == (3, 0)
    assert await raw.is_closed()
    assert await drained == 0


async def test_new_connections_are_refused_at_once(
    source: Source, start: Start, dial: Dial, trust: Trust
) -> None:
    """QUIC by CONNECTION_REFUSED, TCP by a closed port: whoever comes goes elsewhere without waiting."""
    gateway = await start(source)
    answer = (await dial(gateway)).request("POST", "/v1/x", JSON, script(events=100, interval_s=0.01))
    await answer.head()
    drained = asyncio.create_task(gateway.drain())
    await eventually(lambda: not is_open(port_of(gateway)))
    with pytest.raises(ConnectError, match="refused"):
        await connect(origin(gateway), trust)
    assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    assert await drained == 0


def is_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


async def test_a_balancer_is_given_time_to_look_elsewhere(source: Source, start: Start, trust: Trust) -> None:
    """With `timeouts.leave_s`: not ready, and yet whoever comes is served."""
    gateway = await start(source, timeouts={"leave_s": 600})
    drained = asyncio.create_task(gateway.drain())
    await asyncio.sleep(0)
    async with await connect(origin(gateway), trust) as connection:
        assert await connection.request("GET", "/readyz").head() == 503
        answer = connection.request("POST", "/v1/x", JSON, script(events=1))
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    await gateway.drain_now()
    assert await drained == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_at_once_and_says_how_many_were_cut(
    number: int, source: Source, env: dict[str, str], tmp_path: Path
) -> None:
    """Each with its last event; exit status 3."""
    serving = await asyncio.to_thread(Serving, ["--upstream", source.url], env, tmp_path)
    async with await connect(serving.url, Trust(anybody=True)) as connection:
        answers = [connection.request("POST", "/v1/x", JSON, script(**LONG)) for _ in range(3)]
        await asyncio.gather(*(answer.head() for answer in answers))
        serving.process.send_signal(number)
        await asyncio.to_thread(serving.wait_for, "message", "going away: 3 answers run on")
        ends = [asyncio.create_task(read_to_the_end(answer)) for answer in answers]
        status, log = await asyncio.to_thread(serving.end, number)
        for body in await asyncio.gather(*ends):
            assert TOLD.encode() in body.split(b"\n\n")[-2]
    assert status == 3
    assert log[0]["message"] == "a second signal: ending at once"
    assert log[-1]["message"] == "closed; cut: 3 answers"
    assert [entry["cause"] for entry in log if "path" in entry] == ["cut"] * 3
    await eventually(lambda: not source.running())


async def read_to_the_end(answer: Any) -> bytes:
    body = b""
    with pytest.raises(StreamResetError):
        async for batch in answer.chunks():
            body += b"".join(chunk.data for chunk in batch)
    return body


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a mount namespace, which needs root")
def test_a_second_gateway_takes_over_behind_the_same_name() -> None:
    """Two addresses of one name: no stream is cut, no request fails, and the first one exits with 0."""
    arguments = ["--streams", "40", "--events", "150", "--people", "2"]
    code = f"from bench.gateway.drain import main; main({arguments}, False)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["streams"] == {"all": 40, "running_at_sigterm": 40, "cut": 0}
    assert result["failed"] == {}
    assert result["exit_status"] == 0
    assert all(result["served"].values())
