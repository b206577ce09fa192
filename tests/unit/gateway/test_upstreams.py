"""Choosing an upstream: the least busy of the healthy ones, each in its turn."""

from __future__ import annotations

import pytest

from headrace.config import Upstream as UpstreamConfig
from headrace.gateway.model_list import Unreadable, read
from headrace.gateway.upstreams import Upstreams, joined


def upstreams(*models: list[str], paths: list[str] | None = None) -> Upstreams:
    configs = [
        UpstreamConfig(url=f"http://host{number}:80", models=names, paths=paths or ["/"])
        for number, names in enumerate(models)
    ]
    return Upstreams(configs)


def test_equals_take_turns() -> None:
    group = upstreams(["a"], ["a"], ["a"])
    chosen = [group.choose(group.all, []) for _ in range(6)]
    assert {id(upstream) for upstream in chosen[:3]} == {id(upstream) for upstream in group.all}
    assert chosen[:3] == chosen[3:]


def test_the_least_busy_comes_first_and_the_unhealthy_last() -> None:
    group = upstreams(["a"], ["a"], ["a"])
    first, second, third = group.all
    first.in_flight, second.in_flight, third.in_flight = 2, 1, 0
    third.is_healthy = False
    assert group.choose(group.all, []) is second
    assert group.choose(group.all, [second]) is first
    assert group.choose(group.all, [first, second]) is third
    assert group.choose(group.all, [first, second, third]) is None


@pytest.mark.parametrize(
    ("model", "serving"),
    [("llama-3-8b", [0, 2]), ("llama", [2]), ("qwen", [1, 2]), ("QWEN", [2]), ("", [2]), (None, [0, 1, 2])],
)
def test_models_are_matched_by_name_and_pattern(model: str | None, serving: list[int]) -> None:
    group = upstreams(["llama-*"], ["qwen"], ["*"])
    assert [group.all.index(upstream) for upstream in group.candidates("/v1/x", model)] == serving


def test_paths_are_matched_by_their_beginning() -> None:
    group = upstreams(["a"], paths=["/api/", "/v1/chat"])
    assert group.candidates("/api/chat", "a") == group.all
    assert group.candidates("/v1/chat/completions", "a") == group.all
    assert group.candidates("/v1/embeddings", "a") == []


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"data": [{"id": "a"}, {"id": "b"}]}', ["a", "b"]),
        (b'{"data": []}', []),
        (b'{"models": []}', []),
        (b"not json", []),
        (b"[]", []),
        (b'{"data": [{"name": "a"}]}', []),
    ],
)
def test_model_lists_of_any_kind_are_survived(body: bytes, names: list[str]) -> None:
    try:
        assert list(read("/v1/models", 200, body, False)) == names
    except Unreadable:
        assert not names


@pytest.mark.parametrize(
    ("prefix", "target", "asked"),
    [
        ("", "/v1/chat/completions?a=b", "/v1/chat/completions?a=b"),
        ("/base", "/v1/chat/completions", "/base/v1/chat/completions"),
        ("/v1", "/v1/chat/completions", "/v1/chat/completions"),
        ("/v1", "/v1?a", "/v1?a"),
        ("/v1", "/api/chat", "/api/chat"),
        ("/v1", "/v1beta/models/x:generateContent", "/v1beta/models/x:generateContent"),
        ("/openai/v1", "/v1/models", "/openai/v1/models"),
        ("/openai/v1", "/other", "/openai/other"),
        ("/api/v4", "/v1/chat/completions", "/api/v4/chat/completions"),
        ("/v1beta/openai", "/v1/models", "/v1beta/openai/v1/models"),
        ("/vault", "/v1/models", "/vault/v1/models"),
    ],
)
def test_the_version_at_the_end_of_a_url_is_not_said_twice(prefix: str, target: str, asked: str) -> None:
    assert joined(prefix, target) == asked


@pytest.mark.parametrize(
    ("known", "model"), [("qwen3", "qwen3:latest"), ("qwen3:latest", "qwen3"), ("a:latest", "a:latest")]
)
def test_a_name_without_a_tag_is_the_latest(known: str, model: str) -> None:
    group = upstreams([known], ["other"])
    assert group.candidates("/v1/x", model) == group.all[:1]
    assert group.candidates("/v1/x", f"{model}:8b") == []
