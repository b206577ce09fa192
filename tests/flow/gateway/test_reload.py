"""A new configuration and a new certificate, while answers run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace import dev_certificate
from headrace.client import Connection, Trust, connect
from headrace.errors import ConfigError, ConnectError
from headrace.gateway import Gateway
from headrace.gateway.auth import new_key
from headrace_lab.model import Source
from tests.helpers.answers import is_whole
from tests.helpers.requests import JSON, script
from tests.helpers.serving import config, origin

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]


async def test_a_new_certificate_is_shown_and_no_answer_is_cut(
    gateway: Gateway, source: Source, dial: Dial, trust: Trust, tmp_path: Path
) -> None:
    other = dev_certificate.make(["localhost"])
    (tmp_path / "other.pem").write_text(other.ca_pem)
    """With 200 streams running, tokens each 20 ms."""
    connections = [await dial(gateway) for _ in range(5)]
    answers = [
        connection.request("POST", "/v1/x", JSON, script(events=60, interval_s=0.02))
        for connection in connections
        for _ in range(40)
    ]
    await asyncio.gather(*(answer.head() for answer in answers))
    await gateway.reload(config(source), other.chain_pem, other.key_pem)
    with pytest.raises(ConnectError):
        await connect(origin(gateway), trust)
    async with await connect(origin(gateway), Trust(tmp_path / "other.pem")) as connection:
        assert await connection.request("GET", "/healthz").head() == 200
    bodies = await asyncio.gather(*(answer.read() for answer in answers))
    assert all(is_whole(body, 60) for body in bodies)
    assert await connections[0].request("GET", "/healthz").head() == 200


async def test_a_certificate_that_cannot_be_used_changes_nothing(
    gateway: Gateway, source: Source, dial: Dial
) -> None:
    with pytest.raises(ConfigError, match="certificate"):
        await gateway.reload(config(source), "no PEM", "no PEM")
    assert await (await dial(gateway)).request("GET", "/healthz").head() == 200


async def test_upstreams_come_and_go_and_those_that_stay_keep_their_state(
    start: Start, certificate: dev_certificate.Certificate, dial: Dial
) -> None:
    async with (
        Source(models=("one",)) as one,
        Source(models=("two",)) as two,
        Source(models=("three",)) as three,
    ):
        gateway = await start(one, two)
        connection = await dial(gateway)
        running = connection.request("POST", "/v1/x", JSON, b'{"model": "two", "script": {"events": 50}}')
        await running.head()
        kept = gateway.upstreams.all[0]
        await gateway.reload(config(one, three), certificate.chain_pem, certificate.key_pem)
        assert gateway.upstreams.all[0] is kept
        listed = await connection.request("GET", "/v1/models").read()
        assert b'"three"' in listed
        assert b'"two"' not in listed
        asked = {
            model: connection.request("POST", "/v1/x", JSON, b'{"model": "%s"}' % model.encode())
            for model in ("one", "two", "three")
        }
        assert [await answer.head() for answer in asked.values()] == [200, 404, 200]
        assert (await running.read()).endswith(b"data: [DONE]\n\n")
        for answer in asked.values():
            answer.stop()


async def test_keys_hold_from_the_next_request_on(
    gateway: Gateway, source: Source, certificate: dev_certificate.Certificate, dial: Dial
) -> None:
    connection = await dial(gateway)
    assert await connection.request("GET", "/v1/models").head() == 200
    key, entry = new_key("alice")
    changed = config(source, auth={"keys": [entry]})
    await gateway.reload(changed, certificate.chain_pem, certificate.key_pem)
    assert await connection.request("GET", "/v1/models").head() == 401
    assert await connection.request("GET", "/v1/models", [("authorization", f"Bearer {key}")]).head() == 200


async def test_what_needs_a_start_is_named_and_kept(
    gateway: Gateway, source: Source, certificate: dev_certificate.Certificate
) -> None:
    changed = config(source, limits={"max_head_bytes": 4096}, listen={"port": 1}, echo={"mode": "off"})
    later = await gateway.reload(changed, certificate.chain_pem, certificate.key_pem)
    assert later == ["listen", "echo", "limits"]
    assert gateway.config.listen.port == 0
