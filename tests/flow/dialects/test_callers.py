"""Whose request it is: in whatever API a caller says it, two callers are never taken for one."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from headrace.client import Connection
from headrace.events import dialects
from headrace.gateway import Gateway
from headrace.gateway.auth import new_key
from tests.flow.dialects.model_server import ModelServer
from tests.flow.dialects.words import WORDS
from tests.helpers.requests import JSON
from tests.helpers.serving import httpx_client, origin
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]
KEYED = [*JSON, ("idempotency-key", "one")]
DONE = b"data: [DONE]\n\n"

Fields = list[tuple[str, str]]
Caller = tuple[str, Fields]
"""What a caller adds to the target and to the fields."""


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer(pieces=[DONE]) as started:
        yield started


def fields(name: str) -> list[Caller]:
    return [("", [(name, key)]) for key in ("Bearer alice", "Bearer bob", "alice", "bob")]


def queries(name: str) -> list[Caller]:
    return [(f"{name}={key}", []) for key in ("alice", "bob")]


TOGETHER: list[Caller] = [
    ("", [("authorization", "Bearer shared"), ("api-key", "alice")]),
    ("", [("authorization", "Bearer shared"), ("api-key", "bob")]),
    ("", [("authorization", "Bearer shared"), ("x-goog-api-key", "alice")]),
    ("", [("api-key", "shared"), ("api-key", "alice")]),
    ("", [("api-key", "shared"), ("api-key", "bob")]),
    ("", [("api-key", "shared\talice")]),
    ("key=alice", [("api-key", "shared")]),
    ("key=bob", [("api-key", "shared")]),
    ("key=shared&key=alice", [("api-key", "shared")]),
    ("key=shared&key=bob", [("api-key", "shared")]),
    ("", [("x-api-key", "alice")]),
    ("", [("api-key", "alice")]),
    ("", []),
]

# Of APIs that have no row.
OTHERS = [
    "cookie",
    "x-auth-token",
    "x-litellm-api-key",
    "helicone-auth",
    "cf-access-client-secret",
    "x-session",
]
OTHER_QUERIES = ["KEY", "%6Bey", "api_key", "token", "Access_Token", "sig"]


def ways() -> list[object]:
    names = [*dialects.key_fields(), *OTHERS]
    asked = {name for dialect in dialects.dialects().values() for name in dialect.key_queries}
    params = [pytest.param(fields(name), id=name) for name in names]
    params += [pytest.param(queries(name), id=f"?{name}") for name in [*sorted(asked), *OTHER_QUERIES]]
    return [*params, pytest.param(TOGETHER, id="several at once")]


@pytest.mark.parametrize("callers", ways())
async def test_callers_with_different_keys_never_share_a_generation(
    callers: list[Caller], model: ModelServer, start: Start, dial: Dial
) -> None:
    """The gateway has no keys of its own: whether a key is good, the model server alone knows."""
    gateway = await start(upstreams=[model.upstream])
    connection = await dial(gateway)
    for name, words in WORDS.items():
        model.asked.clear()
        keyed = [*JSON, ("idempotency-key", name)]
        targets = [
            (f"{words.path}{'&' if '?' in words.path else '?'}{query}", extra) for query, extra in callers
        ]
        for target, extra in targets * 2:
            response = connection.request("POST", target.rstrip("?&"), [*keyed, *extra], b"{}")
            assert await response.head() == 200
            assert await response.read() == DONE
        assert len(model.asked) == len(callers), "each caller has one generation, which it is told twice"


async def test_the_case_of_a_fields_name_says_nothing(
    model: ModelServer, start: Start, ca_file: Path
) -> None:
    gateway = await start(upstreams=[model.upstream])
    async with httpx_client(ca_file, http2=False) as client:
        for field in dialects.key_fields():
            model.asked.clear()
            for key in ("alice", "bob"):
                for name in (field, field.upper(), field.title()):
                    headers = {"Idempotency-KEY": field, name: key}
                    answer = await client.post(
                        origin(gateway) + "/v1/messages", content=b"{}", headers=headers
                    )
                    assert answer.content == DONE
            assert len(model.asked) == 2, field


async def test_what_does_not_say_who_asks_does_not_keep_a_caller_from_its_answer(
    model: ModelServer, start: Start, dial: Dial
) -> None:
    """SDKs count their attempts, and proxies trace them."""
    connection = await dial(await start(upstreams=[model.upstream]))
    for attempt in ("0", "1"):
        extra = [
            ("authorization", "Bearer alice"),
            ("user-agent", f"sdk/{attempt}"),
            ("traceparent", attempt),
        ]
        extra += [
            ("x-stainless-retry-count", attempt),
            ("x-request-id", attempt),
            ("x-forwarded-for", attempt),
        ]
        await connection.request("POST", "/v1/messages", [*KEYED, *extra], b"{}").read()
    assert len(model.asked) == 1


def key_places() -> list[object]:
    places = []
    for name, dialect in dialects.dialects().items():
        target = WORDS[name].path
        for field in dialect.key_fields:
            places.append(pytest.param(target, field, None, id=f"{name} {field}"))
        for query in dialect.key_queries:
            places.append(pytest.param(target, None, query, id=f"{name} ?{query}"))
    return places


@pytest.mark.parametrize(("target", "field", "query"), key_places())
async def test_a_key_is_found_where_its_api_has_it_and_never_goes_upstream(
    target: str,
    field: str | None,
    query: str | None,
    model: ModelServer,
    start: Start,
    dial: Dial,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The upstream is given its own key, in the form that the client used or that its API wants."""
    key, entry = new_key("alice")
    monkeypatch.setenv("MODEL_KEY", "secret-of-the-model")
    upstream = {**model.upstream, "api_key_env": "MODEL_KEY"}
    connection = await dial(await start(upstreams=[upstream], auth={"keys": [entry]}))

    async def ask(key: str) -> int:
        extra = [dialects.key_field(field, key)] if field else []
        asked = f"{target}{'&' if '?' in target else '?'}{query}={key}&more=1" if query else target
        response = connection.request("POST", asked, [*JSON, *extra], b"{}")
        return await response.head()

    assert await ask("wrong") == 401
    assert await ask(key) == 200
    sent = model.asked[0]
    assert key not in f"{sent.fields} {sent.target}"
    wanted = field or dialects.of(target).key_fields[0]
    assert sent.fields[wanted] == dialects.key_field(wanted, "secret-of-the-model")[1]
    others = {name for name in dialects.key_fields() if name != wanted}
    assert not others & set(sent.fields), "no second key"
    if query:
        assert sent.target.endswith("more=1"), "what else the query says goes on"


async def test_any_of_several_keys_lets_in(model: ModelServer, start: Start, dial: Dial) -> None:
    """An SDK sends the key that it must have, beside the one that the user set."""
    key, entry = new_key("alice")
    connection = await dial(await start(upstreams=[model.upstream], auth={"keys": [entry]}))
    for first, second in itertools.permutations(
        ["authorization", "x-api-key", "api-key", "x-goog-api-key"], 2
    ):
        extra = [dialects.key_field(first, "unused"), dialects.key_field(second, key)]
        assert await connection.request("POST", "/v1/messages", [*JSON, *extra], b"{}").head() == 200
    extra = [("api-key", "unused"), ("api-key", key)]
    assert await connection.request("POST", "/v1/messages", [*JSON, *extra], b"{}").head() == 200


async def test_a_key_in_a_query_is_in_no_log(
    model: ModelServer, start: Start, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    key, entry = new_key("alice")
    caplog.set_level("DEBUG")
    gateway = await start(upstreams=[model.upstream], auth={"keys": [entry]}, log={"access": True})
    target = f"{WORDS['gemini'].path}&key={key}"
    await (await dial(gateway)).request("POST", target, JSON, b"{}").read()
    await eventually(lambda: any("alice" in record.getMessage() for record in caplog.records))
    assert key not in caplog.text


@pytest.mark.parametrize(
    ("health_path", "names"),
    [
        ("/v1/models", {"authorization", "x-api-key"}),
        ("/v1beta/models", {"x-goog-api-key"}),
        ("/v1beta/openai/models", {"authorization"}),
        ("/api/tags", {"authorization"}),
        ("/health", {"authorization"}),
    ],
)
async def test_a_model_server_is_asked_how_it_is_with_its_key(
    health_path: str,
    names: set[str],
    model: ModelServer,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MODEL_KEY", "secret-of-the-model")
    await start(upstreams=[{**model.upstream, "api_key_env": "MODEL_KEY", "health_path": health_path}])
    asked = next(one for one in model.probes if one.target == health_path)
    assert {name for name in dialects.key_fields() if name in asked.fields} == names
