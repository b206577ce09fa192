"""The hops of a request are told in `Via`, and a request that comes round is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.asking import PROTOCOLS, ask
from tests.helpers.requests import JSON, script
from tests.helpers.serving import config, origin

Start = Callable[..., Awaitable[Gateway]]

BODY = script(events=1, interval_s=0)

HOPS = {
    "none": ([], []),
    "an empty one": ([""], []),
    "one": (["1.1 edge"], ["1.1 edge"]),
    "a list with a comment": (["1.0 fred, 1.1 p.example.net (a, b)"], ["1.0 fred, 1.1 p.example.net (a, b)"]),
    "two fields": (["1.0 fred", "HTTP/2 edge"], ["1.0 fred", "HTTP/2 edge"]),
    "another gateway of ours": (["3 headrace-00000000"], ["3 headrace-00000000"]),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("came", "kept"), HOPS.values(), ids=HOPS.keys())
async def test_the_hops_before_us_are_told_and_we_are_the_last(
    came: list[str], kept: list[str], protocol: str, source: Source, start: Start, ca_file: Path
) -> None:
    """RFC 9110 §7.6.3: each hop appends itself, with the version in which the request came to it."""
    gateway = await start(source)
    told = await ask(gateway, protocol, ca_file, BODY, headers=[*JSON, *(("via", hops) for hops in came)])
    assert told.status == 200
    last = f"{protocol.removeprefix('HTTP/')} {gateway.pseudonym}"
    assert source.runs[0].fields["via"] == ", ".join([*kept, last])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("form", ["1.1 {}", "HTTP/1.1 {}", "1.0 fred,2 {},1.1 p (it, too)", "3 {} (comment)"])
async def test_a_request_that_came_through_us_before_is_refused(
    form: str, protocol: str, source: Source, start: Start, ca_file: Path
) -> None:
    """However other hops write it, and whichever field of several names us."""
    gateway = await start(source)
    hops = [("via", "1.0 fred"), ("via", form.format(gateway.pseudonym)), ("via", "1.1 edge")]
    told = await ask(gateway, protocol, ca_file, BODY, headers=[*JSON, *hops])
    assert (told.status, told.is_whole) == (508, True)
    assert b"loop_detected" in told.body
    assert not source.runs


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_two_gateways_that_lead_to_each_other_answer_at_once(
    protocol: str, source: Source, start: Start, ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request goes round once, and its client is told why there is no answer."""
    monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))
    first = await start(source, pool={"ca_file": ca_file})
    second = await start(upstreams=[{"url": origin(first), "models": "scripted"}], pool={"ca_file": ca_file})
    looped = config(upstreams=[{"url": origin(second), "models": "scripted"}], pool={"ca_file": ca_file})
    await first.reload(looped, first.certificate_pem, first.key_pem)
    told = await ask(first, protocol, ca_file, BODY)
    assert (told.status, told.is_whole) == (508, True)
    assert b"loop_detected" in told.body
    assert not source.runs
