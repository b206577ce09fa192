"""Which origins speak HTTP/3, as they said themselves (RFC 7838)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.alt_svc import MAX_ENTRIES, Alternative, AltSvcCache, parse

BAD_PORT = '[{"host": "api.example", "port": 443, "to_host": "a", "to_port": 99999, "until": 1e12}]'
ORIGIN = ("api.example", 443)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ('h3=":443"', [Alternative("", 443, 86400)]),
        ('h3=":443"; ma=60', [Alternative("", 443, 60)]),
        ('h3="alt.example:8443"; ma="60"; persist=1', [Alternative("alt.example", 8443, 60)]),
        ('h3="[::1]:443"', [Alternative("::1", 443, 86400)]),
        ('h2=":443", h3=":4433";ma=5 , h3-29=":1"', [Alternative("", 4433, 5)]),
        ('h3=":1"; ma=1; unknown="a,b;c", h3=":2"; ma=2', [Alternative("", 1, 1), Alternative("", 2, 2)]),
        ("clear", None),
        (" clear ", None),
        ("", []),
        ("h3", []),
        ("h3=:443", []),
        ('h3=":0"', []),
        ('h3=":65536"', []),
        ('h3="nowhere"', []),
        ('h3=":443', []),
        (f'h3=":{"9" * 5000}"', []),
        (f'h3=":1"; ma={"9" * 5000}', [Alternative("", 1, 999999999999)]),
    ],
)
def test_a_field_is_read_as_rfc_7838_writes_it(value: str, found: list[Alternative] | None) -> None:
    assert parse(value) == found


@given(st.text(max_size=200))
def test_whatever_a_server_sends_is_read_without_an_error(value: str) -> None:
    for alternative in parse(value) or []:
        assert 0 < alternative.port < 65536


def test_an_entry_lasts_as_long_as_it_said() -> None:
    now = 1000.0
    cache = AltSvcCache(clock=lambda: now)
    cache.note(ORIGIN, 'h3=":4433"; ma=60')
    assert cache.find(ORIGIN) == ("api.example", 4433)
    assert cache.find(("other.example", 443)) is None
    now += 60
    assert cache.find(ORIGIN) is None


def test_clear_forgets_and_another_protocol_does_not() -> None:
    cache = AltSvcCache()
    cache.note(ORIGIN, 'h3=":443"')
    cache.note(ORIGIN, 'h2=":443"')
    assert cache.find(ORIGIN)
    cache.note(ORIGIN, "clear")
    assert cache.find(ORIGIN) is None


def test_the_next_process_knows_it(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "alt-svc.json"
    AltSvcCache(file).note(ORIGIN, 'h3="alt.example:443"')
    assert AltSvcCache(file).find(ORIGIN) == ("alt.example", 443)


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"host": 1}]', "null", '{"a": []}', "\x00", BAD_PORT])
def test_a_file_that_cannot_be_read_is_forgotten(tmp_path: Path, text: str) -> None:
    file = tmp_path / "alt-svc.json"
    file.write_text(text)
    cache = AltSvcCache(file)
    assert cache.find(ORIGIN) is None
    cache.note(ORIGIN, 'h3=":443"')
    assert json.loads(file.read_text())[0]["host"] == "api.example"


def test_a_renewal_does_not_write_the_file_each_time(tmp_path: Path) -> None:
    now = 1000.0
    file = tmp_path / "alt-svc.json"
    cache = AltSvcCache(file, clock=lambda: now)
    cache.note(ORIGIN, 'h3=":443"')
    file.write_text("untouched")
    now += 10
    cache.note(ORIGIN, 'h3=":443"')
    assert file.read_text() == "untouched"


def test_it_does_not_grow_without_a_bound() -> None:
    cache = AltSvcCache()
    for number in range(MAX_ENTRIES + 10):
        cache.note((f"{number}.example", 443), f'h3=":443"; ma={100 + number}')
    assert cache.find(("0.example", 443)) is None
    assert cache.find((f"{MAX_ENTRIES + 9}.example", 443))
