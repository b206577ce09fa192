"""Which keys a request has, and who it says that it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from headrace.config import Auth
from headrace.exchange import Request
from headrace.gateway import auth
from headrace.gateway.auth import Keys, hash_key, new_key


@dataclass
class Head:
    """As much of a request as is looked at."""

    target: str = "/v1/chat/completions"
    headers: list[tuple[str, str]] = field(default_factory=list)


def request(target: str = "/v1/chat/completions", *headers: tuple[str, str]) -> Request:
    return cast(Request, Head(target, list(headers)))


def test_a_key_is_known_by_its_hash_alone() -> None:
    key, entry = new_key("alice")
    assert key not in entry
    assert hash_key(key) in entry
    keys = Keys(Auth(keys=[entry]))
    assert keys.are_required
    assert not Keys(Auth()).are_required
    for value, name in [
        (f"Bearer {key}", "alice"),
        (f"bearer  {key} ", "alice"),
        (key, "alice"),
        (f"Bearer {key}x", None),
        (f"Basic {key}", None),
        ("Bearer", None),
        ("", None),
    ]:
        assert keys.name_of(request("/", ("authorization", value))) == name, value
    assert keys.name_of(request()) is None


def test_only_so_many_keys_of_one_request_are_looked_at() -> None:
    key, entry = new_key("alice")
    keys = Keys(Auth(keys=[entry]))
    many = [("api-key", "guess")] * (auth.MOST_KEYS - 1)
    assert keys.name_of(request("/", *many, ("api-key", key))) == "alice"
    assert keys.name_of(request("/", *many, ("api-key", "guess"), ("api-key", key))) is None


GEMINI = "/v1beta/models/m:generateContent"


@pytest.mark.parametrize(
    ("target", "rest"),
    [
        (f"{GEMINI}?key=k", GEMINI),
        (f"{GEMINI}?alt=sse&key=k&x=%20", f"{GEMINI}?alt=sse&x=%20"),
        (f"{GEMINI}?KEY=k&%6Bey=l&access_token=m", GEMINI),
        (f"{GEMINI}?alt=sse&&monkey=1", f"{GEMINI}?alt=sse&&monkey=1"),
        (f"{GEMINI}?key", GEMINI),
        (GEMINI, GEMINI),
        (f"{GEMINI}?", f"{GEMINI}?"),
        ("/v1/search?key=word", "/v1/search?key=word"),
        ("/openai/deployments/g/chat/completions?api-version=1&api-key=k",
         "/openai/deployments/g/chat/completions?api-version=1"),
    ],
)  # fmt: skip
def test_keys_are_taken_out_of_the_query_of_their_api_alone(target: str, rest: str) -> None:
    assert auth.without_keys(target) == rest


def test_a_target_that_is_no_text_is_read_all_the_same() -> None:
    odd = request(f"{GEMINI}?key=%ff%fe&a=%&=b&%", ("x-api-key", "\xff\xfe"))
    assert auth.presented(odd)
    assert auth.identity(odd)
    assert Keys(Auth(keys=[new_key("alice")[1]])).name_of(odd) is None


def test_what_a_caller_says_cannot_be_said_in_another_way() -> None:
    """No two different heads come to one identity by the way they are written down."""
    heads = [
        request("/"),
        request("/?key="),
        request("/?key=a"),
        request("/?key=a&key=b"),
        request("/?key=a%26key=b"),
        request("/", ("x-api-key", "")),
        request("/", ("x-api-key", "a")),
        request("/", ("x-api-key", "a"), ("x-api-key", "b")),
        request("/", ("x-api-key", 'a"], ["x-api-key", "b')),
        request("/", ("x-api-key", "a\nb")),
        request("/", ("api-key", "a")),
    ]
    assert len({auth.identity(head) for head in heads}) == len(heads)
    first, second = ("x-api-key", "a"), ("cookie", "b")
    assert auth.identity(request("/", first, second)) == auth.identity(request("/", second, first))
