"""Which upstream a request goes to, and what the gateway answers itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.client import Connection
from headrace.gateway import Gateway
from headrace.gateway.auth import new_key
from headrace_lab.model import Script, Source
from tests.helpers.requests import JSON, script
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]

QUICK = {"events": 3, "interval_s": 0.001}


async def ask(
    connection: Connection, body: bytes, path: str = "/v1/chat/completions", headers: Any = JSON
) -> tuple[int, bytes]:
    response = connection.request("POST", path, list(headers), body)
    status = await response.head()
    return status, await response.read()


def named(model: str | None, **fields: Any) -> bytes:
    return json.dumps(
        {"model": model, "script": QUICK | fields} if model else {"script": QUICK | fields}
    ).encode()


PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/api/chat",
    "/api/generate",
    "/anything/else?with=query",
]


@pytest.mark.parametrize("path", PATHS)
async def test_any_path_passes_through(path: str, source: Source, gateway: Gateway, dial: Dial) -> None:
    status, _ = await ask(await dial(gateway), named("scripted"), path)
    assert status == 200
    assert source.runs[0].path == path


async def test_a_path_in_the_upstreams_url_is_put_before(source: Source, start: Start, dial: Dial) -> None:
    gateway = await start(upstreams=[{"url": f"{source.url}/base/", "models": "scripted"}])
    await ask(await dial(gateway), named("scripted"))
    assert source.runs[0].path == "/base/v1/chat/completions"


async def test_the_models_own_upstream_is_asked(start: Start, dial: Dial) -> None:
    async with Source(models=("a", "b")) as first, Source(models=("c-*",)) as second:
        connection = await dial(await start(first, second))
        for model in ("a", "b", "c-7b", "c-"):
            assert (await ask(connection, named(model)))[0] == 200
        assert [run.model for run in first.runs] == ["a", "b"]
        assert [run.model for run in second.runs] == ["c-7b", "c-"]


async def test_an_unknown_model_is_told_with_those_there_are(gateway: Gateway, dial: Dial) -> None:
    status, body = await ask(await dial(gateway), named("gpt-9"))
    error = json.loads(body)["error"]
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["message"] == "no upstream serves the model 'gpt-9'; there are: scripted"


async def test_an_error_has_the_shape_of_the_api_that_was_asked(gateway: Gateway, dial: Dial) -> None:
    connection = await dial(gateway)
    _, anthropic = await ask(connection, named("nope"), "/v1/messages")
    assert json.loads(anthropic)["type"] == "error"
    _, ollama = await ask(connection, named("nope"), "/api/chat")
    assert json.loads(ollama)["error"].startswith("no upstream serves the model 'nope'")


@pytest.mark.parametrize(
    "model", [b"7", b"true", b"[]", b'"%s"' % (b"x" * 257), b'"%s"' % (b"\\n" * 1_000_000)]
)
async def test_a_model_that_cannot_be_a_name_is_refused(
    model: bytes, source: Source, gateway: Gateway, dial: Dial
) -> None:
    """Nothing of the body is in the message."""
    status, answer = await ask(await dial(gateway), b'{"model": %s}' % model)
    error = json.loads(answer)["error"]
    assert (status, error["code"], error["param"]) == (400, "invalid_model", "model")
    assert error["message"] == "the request's `model` is not a text of at most 256 bytes"
    assert not source.runs


NOT_JSON = [b"{not json", b"[1, 2]", b"\xff\xfe", b'{"model": "a"} and more', b'{"model": "a"']


@pytest.mark.parametrize("body", NOT_JSON)
async def test_a_body_that_is_not_json_is_told_where_the_upstream_depends_on_its_model(
    body: bytes, start: Start, dial: Dial
) -> None:
    async with Source(models=("a",)) as first, Source(models=("b",)) as second:
        status, answer = await ask(await dial(await start(first, second)), body)
    error = json.loads(answer)["error"]
    assert (status, error["code"]) == (400, "invalid_json")
    assert (
        error["message"] == "the body is not a JSON object, and which upstream serves it depends on its model"
    )


@pytest.mark.parametrize("body", NOT_JSON)
async def test_a_body_that_is_not_json_is_the_model_servers_to_judge_where_nothing_depends_on_it(
    body: bytes, source: Source, gateway: Gateway, dial: Dial
) -> None:
    """It arrives as it is, and the model server's own answer is relayed."""
    await ask(await dial(gateway), body)
    assert source.runs[0].body_bytes == len(body)


@pytest.mark.parametrize("content_type", ["multipart/form-data; boundary=x", "text/plain", "audio/wav"])
async def test_a_body_of_another_type_needs_no_model(content_type: str, start: Start, dial: Dial) -> None:
    async with Source(models=("a",)) as first, Source(models=("b",)) as second:
        connection = await dial(await start(first, second))
        status, _ = await ask(connection, b"--x\r\n", headers=[("content-type", content_type)])
        assert status == 200
        assert [run.body_bytes for run in [*first.runs, *second.runs]] == [5]


@pytest.mark.parametrize("depth", [1_000, 1_000_000])
async def test_a_deep_body_is_routed_like_any_other(depth: int, start: Start, dial: Dial) -> None:
    async with Source(models=("a",)) as first, Source(models=("b",)) as second:
        body = b'{"x": %s%s, "model": "b"}' % (b"[" * depth, b"]" * depth)
        await ask(await dial(await start(first, second)), body)
        assert (len(first.runs), [run.body_bytes for run in second.runs]) == (0, [len(body)])


async def test_the_least_busy_upstream_is_asked(start: Start, dial: Dial) -> None:
    async with Source() as first, Source() as second:
        connection = await dial(await start(first, second))
        held = [
            connection.request("POST", "/v1/chat/completions", JSON, script(events=10_000)) for _ in range(8)
        ]
        for response in held:
            await response.head()
        assert (len(first.running()), len(second.running())) == (4, 4)
        for response in held[:4]:
            response.stop()


async def test_a_dead_upstream_is_left_for_another_while_nothing_was_sent(start: Start, dial: Dial) -> None:
    """One retry elsewhere; the dead one is then asked last, and again once it is healthy."""
    async with Source() as alive:
        dead = Source()
        async with dead:
            pass
        gateway = await start(dead, alive)
        connection = await dial(gateway)
        for _ in range(4):
            assert (await ask(connection, named("scripted")))[0] == 200
        assert len(alive.runs) == 4
        assert [upstream.is_healthy for upstream in gateway.upstreams.all] == [False, True]
        async with Source(port=dead.port) as back:
            await eventually(
                lambda: gateway.upstreams.all[0].is_healthy, "it was not noticed that it is healthy"
            )
            for _ in range(4):
                await ask(connection, named("scripted"))
            assert len(back.runs) >= 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_busy_upstream_is_left_for_another(status: int, start: Start, dial: Dial) -> None:
    async with Source(default=Script(events=1, interval_s=0.001, status=status)) as busy:
        async with Source(default=Script(events=1, interval_s=0.001)) as free:
            connection = await dial(await start(busy, free))
            for _ in range(4):
                response = connection.request("POST", "/v1/x", JSON, b'{"model":"scripted"}')
                assert await response.head() == 200
            assert len(free.runs) == 4


async def test_the_last_upstreams_refusal_is_relayed_as_it_is(start: Start, dial: Dial) -> None:
    """With nobody else to ask, a client sees the model server's own words."""
    async with Source(default=Script(events=1, interval_s=0.001, status=503)) as one:
        response = (await dial(await start(one))).request("POST", "/v1/x", JSON, b'{"model":"scripted"}')
        assert await response.head() == 503
        assert b'"n":0' in await response.read()


async def test_a_request_error_is_not_tried_elsewhere(start: Start, dial: Dial) -> None:
    async with Source(default=Script(events=1, interval_s=0.001, status=400)) as first:
        async with Source(default=Script(events=1, interval_s=0.001, status=400)) as second:
            status, _ = await ask(await dial(await start(first, second)), b'{"model":"scripted"}')
            assert status == 400
            assert len(first.runs) + len(second.runs) == 1


async def test_with_every_upstream_dead_the_error_names_one(start: Start, dial: Dial) -> None:
    dead = Source()
    async with dead:
        pass
    status, body = await ask(await dial(await start(dead)), named("scripted"))
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (502, "upstream_connect")
    assert f"127.0.0.1:{dead.port}" in error["message"]


async def test_models_are_learnt_from_the_upstream_itself(start: Start, dial: Dial) -> None:
    async with Source(models=("x", "y")) as first, Source(models=("y", "z")) as second:
        gateway = await start(upstreams=[{"url": first.url}, {"url": second.url, "name": "second"}])
        connection = await dial(gateway)
        response = connection.request("GET", "/v1/models")
        assert await response.head() == 200
        listed = json.loads(await response.read())["data"]
        assert [entry["id"] for entry in listed] == ["x", "y", "z"]
        one = connection.request("GET", "/v1/models/z")
        assert await one.head() == 200
        assert json.loads(await one.read())["id"] == "z"
        none = connection.request("GET", "/v1/models/q")
        assert await none.head() == 404
        assert (await ask(connection, named("z")))[0] == 200
        assert len(second.runs) == 1


async def test_probes_say_whether_requests_can_be_answered(start: Start, dial: Dial) -> None:
    async with Source() as source:
        gateway = await start(source)
        connection = await dial(gateway)
        for path in ("/healthz", "/readyz"):
            response = connection.request("GET", path)
            assert await response.head() == 200
    await ask(connection, named("scripted"))
    response = connection.request("GET", "/readyz")
    assert await response.head() == 503
    state = json.loads(await response.read())["upstreams"]
    assert [upstream["healthy"] for upstream in state.values()] == [False]
    response = connection.request("GET", "/healthz")
    assert await response.head() == 200


@pytest.mark.parametrize("field", ["authorization", "x-api-key", "api-key"])
async def test_a_key_lets_in_and_never_goes_upstream(
    field: str, source: Source, start: Start, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, entry = new_key("alice")
    monkeypatch.setenv("MODEL_KEY", "secret-of-the-model")
    upstream = {"url": source.url, "models": "scripted", "api_key_env": "MODEL_KEY"}
    gateway = await start(upstreams=[upstream], auth={"keys": [entry]})
    connection = await dial(gateway)
    value = f"Bearer {key}" if field == "authorization" else key
    status, _ = await ask(connection, named("scripted"), headers=[*JSON, (field, value)])
    assert status == 200
    sent = source.runs[0].fields
    assert key not in str(sent)
    assert "secret-of-the-model" in sent[field]
    for wrong in ([], [(field, "Bearer nope")], [(field, value + "x")]):
        status, body = await ask(connection, named("scripted"), headers=[*JSON, *wrong])
        assert status == 401
        assert json.loads(body)["error"]["code"] == "invalid_api_key"
    assert len(source.runs) == 1
    probe = connection.request("GET", "/healthz")
    assert await probe.head() == 200
    listing = connection.request("GET", "/v1/models")
    assert await listing.head() == 401


async def test_without_keys_of_its_own_the_clients_key_is_passed_on(
    source: Source, gateway: Gateway, dial: Dial
) -> None:
    await ask(await dial(gateway), named("scripted"), headers=[*JSON, ("authorization", "Bearer mine")])
    assert source.runs[0].fields["authorization"] == "Bearer mine"


async def test_what_goes_upstream_is_ours_to_frame(source: Source, gateway: Gateway, dial: Dial) -> None:
    """No field of one hop, no wish for compression, our own length, and a trace of us (RFC 9110 §7.6.3)."""
    headers = [
        *JSON,
        ("accept-encoding", "gzip"),
        ("expect", "100-continue"),
        ("te", "trailers"),
        ("x-mine", "1"),
    ]
    await ask(await dial(gateway), named("scripted"), headers=headers)
    sent = source.runs[0].fields
    assert sent["x-mine"] == "1"
    assert sent["via"] == f"3 {gateway.pseudonym}"
    assert sent["host"] == f"127.0.0.1:{source.port}"
    assert int(sent["content-length"]) == source.runs[0].body_bytes
    assert not {"accept-encoding", "expect", "te", "transfer-encoding", "connection"} & set(sent)


async def test_ten_thousand_short_answers_leave_nothing_behind(
    source: Source, gateway: Gateway, dial: Dial
) -> None:
    """Every slot, connection and byte is given back."""
    connection = await dial(gateway)
    body = script(events=1, interval_s=0)

    async def worker() -> None:
        for _ in range(200):
            status, _ = await ask(connection, body)
            assert status == 200

    await asyncio.gather(*(worker() for _ in range(50)))
    await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0)
    left = gateway.server.snapshot()
    assert left["exchanges_total"] == 10_000
    assert left["buffered_bytes"] == 0
    assert all(upstream.in_flight == 0 for upstream in gateway.upstreams.all)
    assert source.connections < 300, "connections to the upstream are used again"
