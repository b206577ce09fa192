"""What cannot be read of a model server shuts nobody out, and it is told why nothing is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.gateway import Gateway
from headrace.gateway.auth import new_key
from headrace_lab.model import Source
from tests.helpers.asking import PROTOCOLS, ask
from tests.helpers.hostile import Call, Hostile, whole
from tests.helpers.serving import config

Start = Callable[..., Awaitable[Gateway]]

UNREADABLE = {
    "401": (whole(b"{}", "401 Unauthorized"), "/v1/models answers 401: set api_key_env"),
    "403": (whole(b"{}", "403 Forbidden"), "/v1/models answers 403: set api_key_env"),
    "404": (whole(b"", "404 Not Found"), "/v1/models answers 404: set health_path"),
    "405": (whole(b"", "405 Method Not Allowed"), "/v1/models answers 405"),
    "307": (whole(b"", "307 Temporary Redirect", "location: /elsewhere"), "/v1/models answers 307"),
    "500": (whole(b"", "500 Internal Server Error"), "/v1/models answers 500"),
    "501": (whole(b"", "501 Not Implemented"), "/v1/models answers 501"),
    "HTML": (whole(b"<html>", "200 OK", "content-type: text/html"), "is not a list of models"),
    "empty": (whole(b""), "is not a list of models"),
    "another shape": (whole(b'{"models": ["a"]}'), "is not a list of models"),
    "no models": (whole(b'{"data": []}'), "lists no model"),
}


async def answer(call: Call) -> None:
    await call.send(whole(b'{"from": "the model server"}'))


def named(model: str) -> bytes:
    return json.dumps({"model": model, "script": {"events": 1, "interval_s": 0}}).encode()


@pytest.mark.parametrize(("models", "reason"), UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_an_upstream_whose_models_cannot_be_read_is_asked_for_every_model(
    models: bytes, reason: str, start: Start, ca_file: Path
) -> None:
    async with Hostile(answer, models) as hostile:
        gateway = await start(upstreams=[{"url": hostile.url}])
        told = await ask(gateway, "HTTP/3", ca_file, named("any/model:7b"))
        assert (told.status, told.body) == (200, b'{"from": "the model server"}')
        ready = await ask(gateway, "HTTP/3", ca_file, path="/readyz", method="GET")
        assert reason in next(iter(json.loads(ready.body)["upstreams"].values()))["models_unknown"]
        assert gateway.upstreams.all[0].is_healthy == (not reason.endswith("500"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_model_that_is_known_goes_to_those_who_know_it(
    protocol: str, start: Start, ca_file: Path
) -> None:
    """Only what nobody else has goes to the upstream of which nothing is known."""
    async with Hostile(answer, UNREADABLE["401"][0]) as hostile, Source() as source:
        gateway = await start(upstreams=[{"url": hostile.url}, {"url": source.url}])
        for model in ("scripted", "scripted:latest", "scripted"):
            assert (await ask(gateway, protocol, ca_file, named(model))).status == 200
        assert (len(source.runs), len(hostile.calls)) == (3, 0)
        assert (await ask(gateway, protocol, ca_file, named("other"))).status == 200
        assert (len(source.runs), len(hostile.calls)) == (3, 1)
        none = await ask(gateway, protocol, ca_file, path="/v1/models/other", method="GET")
        assert none.status == 404
        assert "/v1/models answers 401: set api_key_env" in json.loads(none.body)["error"]["message"]


async def test_one_upstream_alone_is_not_checked_by_name(start: Start, ca_file: Path) -> None:
    """Unless its models stand in the configuration: those are a wall."""
    async with Source() as source:
        learnt = await start(upstreams=[{"url": source.url}])
        assert (await ask(learnt, "HTTP/2", ca_file, named("gpt-9"))).status == 200
        set_down = await start(upstreams=[{"url": source.url, "models": ["scripted"]}])
        assert (await ask(set_down, "HTTP/2", ca_file, named("gpt-9"))).status == 404
        assert [run.model for run in source.runs] == ["gpt-9"]


async def test_one_upstream_of_which_nothing_is_known_lists_its_models_itself(
    start: Start, ca_file: Path
) -> None:
    """A client's key may open what the gateway's look could not read."""
    async with Hostile(answer, UNREADABLE["401"][0]) as hostile:
        gateway = await start(upstreams=[{"url": hostile.url}])
        told = await ask(gateway, "HTTP/2", ca_file, path="/v1/models", method="GET")
        assert told.status == 401
        _, entry = new_key("alice")
        closed = await start(upstreams=[{"url": hostile.url}], auth={"keys": [entry]})
        before = hostile.probes
        told = await ask(closed, "HTTP/2", ca_file, path="/v1/models", method="GET")
        assert (told.status, hostile.probes) == (401, before), "the gateway's own key comes first"


ENTRIES: list[dict[str, Any]] = [
    {"id": "org/name:tag", "object": "model", "max_model_len": 4096, "capabilities": ["vision"]},
    {"id": "plain", "owned_by": "vllm", "permission": [{"id": "x"}]},
]


async def test_the_entries_of_models_pass_on_unchanged(start: Start, ca_file: Path) -> None:
    listed = whole(json.dumps({"data": ENTRIES}).encode())
    async with Hostile(answer, listed) as hostile:
        gateway = await start(upstreams=[{"url": hostile.url}])
        told = await ask(gateway, "HTTP/3", ca_file, path="/v1/models", method="GET")
        assert json.loads(told.body)["data"] == ENTRIES
        for path in ("org/name:tag", "org%2Fname%3Atag", "org/name%3atag"):
            one = await ask(gateway, "HTTP/3", ca_file, path=f"/v1/models/{path}", method="GET")
            assert json.loads(one.body) == ENTRIES[0], path
        latest = await ask(gateway, "HTTP/3", ca_file, path="/v1/models/plain:latest", method="GET")
        assert json.loads(latest.body) == ENTRIES[1]


async def test_an_entry_too_deep_to_be_written_is_told_by_its_name(start: Start, ca_file: Path) -> None:
    deep = b'{"data":[{"id":"a","x":' + b"[" * 900 + b"]" * 900 + b'},{"id":"b","x":NaN}]}'
    async with Hostile(answer, whole(deep)) as hostile:
        gateway = await start(upstreams=[{"url": hostile.url}])
        told = await ask(gateway, "HTTP/2", ca_file, path="/v1/models", method="GET")
        assert [entry["id"] for entry in json.loads(told.body)["data"]] == ["a", "b"]
        assert b"NaN" not in told.body


async def test_requests_wait_for_the_first_look(
    certificate: Any, ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between bind and the first look nothing is known, and nobody is refused for that."""
    async with Source() as source, Source(models=("other",)) as other:
        urls = [{"url": source.url}, {"url": other.url}]
        gateway = Gateway(config(upstreams=urls), certificate.chain_pem, certificate.key_pem)
        looked, is_bound = asyncio.Event(), asyncio.Event()
        really = gateway.upstreams.poll_health

        async def later(engine: Any, started: Any) -> None:
            is_bound.set()
            await looked.wait()
            await really(engine, started)

        monkeypatch.setattr(gateway.upstreams, "poll_health", later)
        starting = asyncio.create_task(gateway.start())
        await is_bound.wait()
        asked = asyncio.create_task(ask(gateway, "HTTP/2", ca_file, named("other")))
        probe = await ask(gateway, "HTTP/2", ca_file, path="/readyz", method="GET")
        assert (probe.status, asked.done()) == (503, False), "probes do not wait"
        looked.set()
        assert (await asked).status == 200
        await starting
        await gateway.close()
        assert (len(source.runs), len(other.runs)) == (0, 1)
