"""What a client or a model server names is bounded, matched exactly, and opens nothing that it should not."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.gateway import Gateway
from headrace.gateway.auth import new_key
from headrace_lab.model import Source
from tests.helpers.asking import PROTOCOLS, ask
from tests.helpers.hostile import Call, Hostile, whole
from tests.helpers.requests import JSON
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]

QUICK = {"events": 1, "interval_s": 0}


def named(model: Any) -> bytes:
    return json.dumps({"model": model, "script": QUICK}).encode()


def listed(*names: Any) -> bytes:
    """An answer of `/v1/models`."""
    return whole(json.dumps({"data": [{"id": name} for name in names]}).encode())


DEEP = b"[" * 100_000
LISTS = {
    "nested without end": whole(b'{"data":' + DEEP),
    "a deep entry": whole(b'{"data":[{"id":"scripted","x":' + b"[" * 5000 + b"]" * 5000 + b"}]}"),
    "a deep list": whole(b'{"data":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "not JSON": whole(b"<html>"),
    "not text": whole(b'{"data":[{"id":"\xff\xfe"}]}'),
    "nothing": whole(b""),
    "null": whole(b'{"data":null}'),
    "numbers": listed(1, 2.5, None, True, {"a": []}),
    "half a surrogate": whole(b'{"data":[{"id":"\\ud800"}]}'),
    "too long to read": b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n" + b" " * 9_000_000,
    "no HTTP": b"\0\0\0\0",
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
    "a status that is none": b"HTTP/1.1 99999 OK\r\n\r\n",
    "closed at once": b"",
}


@pytest.mark.parametrize("models", LISTS.values(), ids=LISTS.keys())
async def test_no_list_of_models_ends_the_health_checks(
    models: bytes, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look comes, and so it does for the neighbour."""
    monkeypatch.setattr("headrace.gateway.upstreams.RECOVERY_INTERVAL_S", 0.02)

    async def never(call: Call) -> None:
        raise AssertionError(call.path)

    async with Hostile(never, models) as hostile, Source() as source:
        urls = [
            {"url": hostile.url, "health_interval_s": 0.02},
            {"url": source.url, "health_interval_s": 0.02},
        ]
        gateway = await start(upstreams=urls)
        before = hostile.probes
        await eventually(lambda: hostile.probes > before + 1, "it is looked at again")
        hostile.models = listed("scripted", "later")
        await eventually(lambda: "later" in gateway.upstreams.all[0].models)
        await source.close()
        await eventually(lambda: not gateway.upstreams.all[1].is_healthy, "its neighbour is looked at, too")
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_look_that_fails_in_ourselves_is_said_and_repeated(
    start: Start, source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start(upstreams=[{"url": source.url, "health_interval_s": 0.02}])
    monkeypatch.setattr("headrace.gateway.upstreams.read", lambda *_: 1 / 0)
    await eventually(lambda: caplog.text.count("the look at it failed") > 1)
    monkeypatch.undo()
    source.models = ("scripted", "new")
    await eventually(lambda: "new" in gateway.upstreams.all[0].models)


async def test_what_a_model_server_calls_itself_is_bounded_and_no_pattern(
    start: Start, ca_file: Path
) -> None:
    """`*` does not draw other models' prompts and keys; a list without end is cut."""
    asked: list[str] = []

    async def note(call: Call) -> None:
        asked.append(json.loads(call.body)["model"])
        await call.send(whole(b"{}"))

    names = ["*", "scr*", "[a-z]*", "x" * 257, "a\nb", "", "\x1b[2J", *(f"m{n}" for n in range(120_000))]
    async with Hostile(note, listed(*names)) as hostile, Source() as source:
        gateway = await start(upstreams=[{"url": hostile.url}, {"url": source.url}])
        assert len(gateway.upstreams.all[0].models) < 2000
        for model, status in [
            ("scripted", 200),
            ("m1", 200),
            ("scr*", 200),
            ("other", 404),
            ("m119999", 404),
        ]:
            assert (await ask(gateway, "HTTP/2", ca_file, named(model))).status == status, model
        assert asked == ["m1", "scr*"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_name_of_a_megabyte_is_answered_in_a_few_words(
    protocol: str, gateway: Gateway, ca_file: Path
) -> None:
    for model in ("m" * (1 << 20), "\n" * 200, "\x1b" * 256):
        told = await ask(gateway, protocol, ca_file, named(model))
        assert told.status in (400, 404)
        assert len(told.body) < 2000
        assert told.is_whole


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_json_of_any_depth_is_no_failure_of_ours(
    protocol: str, gateway: Gateway, ca_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for deep in (b"[" * 1000 + b"]" * 1000, b'{"a":' * 1000 + b"1" + b"}" * 1000, b"[" * 50_000):
        for body in (b'{"model":"scripted","x":' + deep + b"}", b'{"model":' + deep + b"}", deep):
            told = await ask(gateway, protocol, ca_file, body)
            assert told.status in (200, 400), body[:40]
    assert not [record for record in caplog.records if record.exc_info]


SECRET = "/private/x"
OUTSIDE = [
    "/public/../private/x",
    "/public/./../private/x",
    "/public/%2e%2e/private/x",
    "/public/.%2E/private/x",
    "/public/%2e./private/x",
    "/public/..%2fprivate/x",
    "/public%2f../private/x",
    "/public/..%5cprivate/x",
    "/public/%252e%252e/private/x",
    "/public/%25252e%25252e/private/x",
    "/public/..;/private/x",
    "/public/..;a=b/private/x",
    "/public/%2e%2e%3b/private/x",
    "/public/a/../../private/x",
    "/public/..",
    "/public/.",
    "/./private/x",
    "/../private/x",
    "/publicly",
    "/public%2fx",
    "/PUBLIC/x",
    "//public/x",
    "/private/x",
    "/public%25252525252e/../x",
    "/public/..%00/private/x",
    "/public/..%23/private/x",
    "/public/..%3f/private/x",
    "/public/..%3Fa=b/private/x",
    "/public/..%2500/private/x",
    "/public/%c0%ae%c0%ae/private/x",
    "/public/%C0%AE./private/x",
    "/public/..%c0%afprivate/x",
    "/public/%u002e%u002e/private/x",
    "/public/.%u002E/private/x",
    "/public/..%u002fprivate/x",
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_paths_are_a_wall(protocol: str, start: Start, ca_file: Path) -> None:
    """What is not below a beginning of `paths`, to whoever resolves it, reaches no model server."""
    async with Source() as source:
        upstream = {"url": source.url + "/base", "models": "scripted", "paths": ["/public"]}
        gateway = await start(upstreams=[upstream])
        for path in OUTSIDE:
            told = await _ask_raw(gateway, protocol, ca_file, path)
            assert told in (400, 404), (path, told)
        assert not source.runs
        for path in (
            "/public",
            "/public/",
            "/public/x",
            "/public/...",
            "/public/a..b/.c",
            "/public/%c3%a0%23",
            "/public?x=/../y",
        ):
            assert await _ask_raw(gateway, protocol, ca_file, path) == 200, path
        assert [run.path for run in source.runs][-1] == "/base/public?x=/../y"


async def _ask_raw(gateway: Gateway, protocol: str, ca_file: Path, path: str) -> int:
    """The path as it is: clients of good manners resolve it before they ask."""
    from tests.helpers import raw_http1, raw_peer
    from tests.helpers.raw_http2 import RawHttp2
    from tests.helpers.serving import port_of

    body = named("scripted")
    if protocol == "HTTP/3":
        async with raw_peer.dial(port_of(gateway)) as peer:
            peer.start_control()
            head = raw_peer.frame(raw_peer.HEADERS, raw_peer.section(*raw_peer.post(path.encode())))
            stream = peer.bidi(head + raw_peer.frame(raw_peer.DATA, body), end=True)
            await peer.until_over(stream)
            return peer.status_of(stream)
    if protocol == "HTTP/2":
        raw = await RawHttp2.connect(port_of(gateway), ca_file)
        await raw.post(1, path, body)
        status = await raw.ended(1)
        await raw.close()
        return status
    return (await raw_http1.post(port_of(gateway), ca_file, path, body)).status


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_policy_of_a_path_holds_for_whole_segments(
    protocol: str, source: Source, start: Start, ca_file: Path
) -> None:
    gateway = await start(source, early_data={"routes": {"/v1": "refuse"}, "other": "run"})
    early = [*JSON, ("early-data", "1")]
    for path, status in [("/v1", 425), ("/v1/x", 425), ("/v1beta", 200), ("/v", 200)]:
        told = await ask(gateway, protocol, ca_file, named("scripted"), path, early)
        assert told.status == status, path


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_stands_behind_the_gateway_is_told_to_those_who_are_let_in(
    protocol: str, source: Source, start: Start, ca_file: Path
) -> None:
    key, entry = new_key("alice")
    gateway = await start(source, auth={"keys": [entry]})
    for headers in ([], [("authorization", "Bearer nope")]):
        told = await ask(gateway, protocol, ca_file, path="/readyz", headers=headers, method="GET")
        assert (told.status, json.loads(told.body)) == (200, {"status": "ready"})
    known = [("authorization", f"Bearer {key}")]
    told = await ask(gateway, protocol, ca_file, path="/readyz", headers=known, method="GET")
    assert f"127.0.0.1:{source.port}" in json.loads(told.body)["upstreams"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_failure_of_ours_before_the_head_is_an_answer_with_a_status(
    protocol: str,
    gateway: Gateway,
    ca_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("headrace.gateway.upstreams.Upstreams.candidates", lambda *_: 1 / 0)
    told = await ask(gateway, protocol, ca_file, named("scripted"))
    assert (told.status, json.loads(told.body)["error"]["code"], told.is_whole) == (500, "internal", True)
    await eventually(lambda: any("500 internal" in record.getMessage() for record in caplog.records))
    assert any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("end", ["\n", "\r\n", " \n\n", "\t"])
async def test_a_key_of_the_environment_may_end_with_a_line_feed(
    end: str, protocol: str, source: Source, start: Start, ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", f"the-models-secret{end}")
    upstream = {"url": source.url, "models": "scripted", "api_key_env": "MODEL_KEY"}
    gateway = await start(upstreams=[upstream])
    assert (await ask(gateway, protocol, ca_file, named("scripted"))).status == 200
    assert source.runs[0].fields["authorization"] == "Bearer the-models-secret"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_no_value_of_a_field_is_in_an_error_or_a_log(
    protocol: str, gateway: Gateway, ca_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Even where a key could not be sent on: the field is named, the client has a status."""
    caplog.set_level(logging.DEBUG)
    gateway.upstreams.all[0].api_key = "secret\r\nx: y"
    told = await ask(gateway, protocol, ca_file, named("scripted"))
    assert (told.status, told.is_whole) == (500, True)
    assert b"secret" not in told.body
    await eventually(lambda: "500 misuse" in caplog.text)
    assert "authorization" in caplog.text
    assert "secret" not in caplog.text
