"""Pages of other origins read what the gateway says, where `cors.origins` names them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.config import load
from headrace.errors import ConfigError
from headrace.gateway import Gateway
from headrace.gateway.auth import new_key
from headrace_lab.model import Script, Source
from tests.helpers.asking import PROTOCOLS, Told, ask
from tests.helpers.hostile import Call, Hostile, whole
from tests.helpers.requests import JSON

Start = Callable[..., Awaitable[Gateway]]

PAGE = "https://chat.example.org"
BODY = json.dumps({"model": "scripted", "script": {"events": 1, "interval_s": 0}}).encode()
ALLOW, EXPOSE = "access-control-allow-origin", "access-control-expose-headers"

PREFLIGHT = [
    ("origin", PAGE),
    ("access-control-request-method", "POST"),
    ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
]


def is_readable(told: Told, origin: str = PAGE) -> bool:
    return told.headers.get(ALLOW) == origin and "retry-after" in told.headers.get(EXPOSE, "")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("origins", [[PAGE, "http://localhost:3000"], ["*"]], ids=["named", "every"])
async def test_a_page_with_a_key_reads_every_answer(
    origins: list[str], protocol: str, source: Source, start: Start, ca_file: Path
) -> None:
    """The preflight has no key; the gateway's own answers and refusals are read as relayed ones are."""
    key, entry = new_key("alice")
    gateway = await start(source, auth={"keys": [entry]}, cors={"origins": origins})
    allowed = PAGE if PAGE in origins else "*"
    asked = await ask(gateway, protocol, ca_file, headers=PREFLIGHT, method="OPTIONS")
    assert (asked.status, asked.body, asked.headers[ALLOW]) == (204, b"", allowed)
    assert asked.headers["access-control-allow-methods"] == "POST"
    assert asked.headers["access-control-allow-headers"] == PREFLIGHT[2][1]
    assert asked.headers["access-control-max-age"] == "7200"
    page, bearer = ("origin", PAGE), ("authorization", f"Bearer {key}")
    unknown = BODY.replace(b"scripted", b"gpt-9")
    for status, path, method, body, fields in [
        (200, "/v1/chat/completions", "POST", BODY, [bearer]),
        (401, "/v1/chat/completions", "POST", BODY, []),
        (404, "/v1/chat/completions", "POST", unknown, [bearer]),
        (400, "/v1/chat/completions", "POST", b'{"model": 7}', [bearer]),
        (400, "/v1/%2e%2e/x", "POST", BODY, [bearer]),
        (200, "/v1/models", "GET", b"", [bearer]),
        (404, "/v1/models/none", "GET", b"", [bearer]),
        (200, "/readyz", "GET", b"", []),
    ]:
        told = await ask(gateway, protocol, ca_file, body, path, [*JSON, page, *fields], method)
        assert (told.status, is_readable(told, allowed)) == (status, True), (path, told)
        assert (told.headers.get("vary") == "origin") == (allowed == PAGE)


async def test_a_failure_of_the_model_server_is_readable_too(start: Start, ca_file: Path) -> None:
    async with Source(default=Script(events=1, interval_s=0, status=503)) as busy, Source() as dead:
        gateway = await start(busy, cors={"origins": [PAGE]})
        told = await ask(
            gateway, "HTTP/2", ca_file, b'{"model":"scripted"}', headers=[*JSON, ("origin", PAGE)]
        )
        assert (told.status, is_readable(told)) == (503, True)
        gateway = await start(dead, cors={"origins": [PAGE]})
        await dead.close()
        told = await ask(gateway, "HTTP/2", ca_file, BODY, headers=[*JSON, ("origin", PAGE)])
        assert (told.status, is_readable(told)) == (502, True)


async def test_the_gateways_word_stands_in_place_of_the_model_servers(start: Start, ca_file: Path) -> None:
    """A browser refuses an answer that allows twice."""

    async def answer(call: Call) -> None:
        await call.send(
            whole(b"{}", "200 OK", f"{ALLOW}: *", "access-control-allow-origin: https://other.org")
        )

    async with Hostile(answer) as hostile:
        gateway = await start(upstreams=[{"url": hostile.url}], cors={"origins": [PAGE]})
        for protocol in PROTOCOLS:
            told = await ask(gateway, protocol, ca_file, BODY, headers=[*JSON, ("origin", PAGE)])
            assert told.headers[ALLOW] == PAGE


async def test_a_page_that_is_not_named_reads_nothing(source: Source, start: Start, ca_file: Path) -> None:
    gateway = await start(source, cors={"origins": [PAGE]})
    other = [("origin", "https://evil.example"), PREFLIGHT[1]]
    asked = await ask(gateway, "HTTP/3", ca_file, headers=other, method="OPTIONS")
    assert (asked.status, ALLOW in asked.headers) == (403, False)
    assert "cors.origins" in json.loads(asked.body)["error"]["message"]
    told = await ask(gateway, "HTTP/3", ca_file, BODY, headers=[*JSON, other[0]])
    assert (told.status, ALLOW in told.headers, told.headers["vary"]) == (200, False, "origin")


async def test_without_origins_the_model_server_answers_preflights(
    source: Source, gateway: Gateway, ca_file: Path
) -> None:
    await ask(gateway, "HTTP/2", ca_file, headers=PREFLIGHT, method="OPTIONS")
    told = await ask(gateway, "HTTP/2", ca_file, path="/readyz", headers=[("origin", PAGE)], method="GET")
    assert ALLOW not in told.headers


@pytest.mark.parametrize("origin", ["chat.example.org", "https://a.org/", "https://A.org", "https://a b", ""])
def test_what_no_browser_sends_as_an_origin_is_told(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"origins: expected an origin as browsers write it"):
        load(flags={"cors": {"origins": [origin]}})
