"""Every recipe of docs/recipes.md, run as it stands; and the SDKs through other people's HTTP/3 servers.

Nothing here may take TCP: recipes run with `http3="only"` as the transports' default, and the gateway's
access log says how each request came.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import headrace.httpx2
from bench import peers
from headrace.gateway import Gateway
from headrace.transport.core import Core
from tests.helpers.serving import origin
from tests.helpers.waiting import eventually
from tests.interop.dialects import ANSWER, WORDS, Dialects

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


class Recipe(NamedTuple):
    section: str
    code: str
    """With empty lines before it, so that a traceback names the page's own lines."""


def recipes() -> list[Recipe]:
    found = []
    section = ""
    lines = PAGE.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("```python"):
            end = lines.index("```", number)
            found.append(Recipe(section, "\n" * (number + 1) + "\n".join(lines[number + 1 : end])))
        elif line.startswith("## "):
            section = line.removeprefix("## ")
    return found


SETTINGS, *RECIPES = recipes()


def params(is_wanted: Callable[[Recipe], bool]) -> Any:
    """The recipes, each named by its section and the page's line."""
    wanted = [recipe for recipe in RECIPES if is_wanted(recipe)]
    names = [
        f"{recipe.section}-line-{recipe.code.count(chr(10), 0, _start(recipe)) + 1}" for recipe in wanted
    ]
    return pytest.mark.parametrize("recipe", wanted, ids=names)


def _start(recipe: Recipe) -> int:
    return len(recipe.code) - len(recipe.code.lstrip("\n"))


@pytest.fixture(scope="module")
def _dialects() -> Iterator[Dialects]:
    with Dialects() as started:
        yield started


@pytest.fixture
def dialects(_dialects: Dialects) -> Dialects:
    _dialects.runs.clear()
    _dialects.tool_calls.clear()
    return _dialects


class Requests(logging.Handler):
    """The gateway's access log, kept."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.seen: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.fields)  # type: ignore[attr-defined]


@pytest.fixture
def requests() -> Iterator[Requests]:
    log, handler = logging.getLogger("headrace.access"), Requests()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


@pytest.fixture
async def front(
    start: Callable[..., Awaitable[Gateway]],
    dialects: Dialects,
    requests: Requests,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The origin of a gateway before the scripted server."""
    monkeypatch.setitem(Core.__init__.__kwdefaults__, "http3", "only")
    return origin(await start(dialects, log={"format": "json"}))


async def run(code: str, front: str, ca_file: Path) -> tuple[str, dict[str, Any]]:
    """Runs a recipe on a thread of its own; gives what it printed, and its names, alive."""
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(SETTINGS.code, names)
    names |= {"ORIGIN": front, "CA": str(ca_file), "MODEL": "scripted"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        await asyncio.to_thread(exec, compile(code, str(PAGE), "exec"), names)
    return printed.getvalue(), names


def test_the_page_has_its_recipes_and_each_shows_the_argument() -> None:
    """So that a page that cannot be read any more does not pass as one without recipes."""
    assert {recipe.section for recipe in RECIPES} == {
        "OpenAI: chat",
        "OpenAI: responses",
        "Anthropic",
        "MCP",
        "Ollama",
        "httpx2",
        "httpx",
        "Stopping",
    }
    assert all("transport=" in recipe.code for recipe in RECIPES)


@params(lambda recipe: recipe.section != "Stopping")
async def test_a_recipe_gets_the_whole_answer_over_http3(
    recipe: Recipe, front: str, dialects: Dialects, requests: Requests, ca_file: Path
) -> None:
    printed, _ = await run(recipe.code, front, ca_file)
    assert printed.rstrip("\n") == ANSWER
    asked = [run.path for run in dialects.runs] + ["/mcp"] * len(dialects.tool_calls)
    assert len(asked) == 1
    await eventually(lambda: asked[0] in [request["path"] for request in requests.seen])
    for request in requests.seen:
        assert request["protocol"] == "HTTP/3"
        assert request["status"] in (200, 202)
        # OpenAI's SDK leaves when it has read `[DONE]`, which may be before the FIN behind it.
        assert request["cause"] == "done"
    await eventually(lambda: set(states(dialects)) <= {"done"}, "it was not sent to its end")


async def test_mcp_of_the_older_protocol(
    front: str, dialects: Dialects, requests: Requests, ca_file: Path
) -> None:
    """It has a session, a stream that stays open beside the calls, and a DELETE."""
    code = next(recipe.code for recipe in RECIPES if recipe.section == "MCP")
    legacy = code.replace("http_client=http_client))", 'http_client=http_client), mode="legacy")')
    assert legacy != code
    printed, _ = await run(legacy, front, ca_file)
    assert printed == f"{ANSWER}\n"
    await eventually(lambda: {request["method"] for request in requests.seen} == {"POST", "GET", "DELETE"})
    assert {request["protocol"] for request in requests.seen} == {"HTTP/3"}


@params(lambda recipe: recipe.section == "Stopping")
async def test_a_stop_is_seen_by_the_model_server(
    recipe: Recipe,
    front: str,
    dialects: Dialects,
    requests: Requests,
    ca_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the client and its loop live: neither their end nor the connection's is what stops the answer."""
    run_loop = asyncio.run

    async def and_wait(main: Coroutine[Any, Any, None]) -> None:
        await main
        await eventually(lambda: states(dialects) == ["aborted"])

    monkeypatch.setattr(asyncio, "run", lambda main: run_loop(and_wait(main)))
    code = recipe.code.replace("abandon_after=10", "abandon_after=0.3")
    printed, names = await run(code, front, ca_file)
    assert printed == f"{WORDS[0]}\n"
    await eventually(lambda: states(dialects) == ["aborted"])
    await eventually(lambda: requests.seen)
    assert (requests.seen[0]["protocol"], requests.seen[0]["cause"]) == ("HTTP/3", "stopped")
    await close(names)


async def test_a_bare_break_stops_nothing(front: str, dialects: Dialects, ca_file: Path) -> None:
    """What `abandon_after=` is there for: without it the same program leaves the answer running."""
    code = RECIPES[-1].code
    assert "abandon_after=10" in code
    _, left = await run(code.replace(", abandon_after=10", ""), front, ca_file)
    _, abandoned = await run(code.replace("abandon_after=10", "abandon_after=0.3"), front, ca_file)
    await eventually(lambda: dialects.runs[1].state == "aborted")
    assert states(dialects) == ["running", "aborted"]
    await close(left)
    await close(abandoned)
    await eventually(lambda: dialects.runs[0].state == "aborted")


def states(dialects: Dialects) -> list[str]:
    return [run.state for run in dialects.runs]


async def close(names: dict[str, Any]) -> None:
    """What a recipe left open."""
    closing = names["client"].close()
    if closing is not None:
        await closing


@pytest.fixture(scope="module")
def peer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    peers.certificate(folder)
    return folder


@pytest.fixture(scope="module", params=["caddy", "envoy"])
def peer(request: pytest.FixtureRequest, _dialects: Dialects, peer_folder: Path) -> Iterator[peers.Proxy]:
    """Its absence is a failure: both are in the `test` group."""
    with peers.PROXIES[request.param](_dialects.url, peer_folder, 1) as started:
        yield started


MESSAGES: Any = [{"role": "user", "content": "hi"}]
Answer = tuple[str, str]
"""The text, and the version of HTTP it came over."""


def openai_sync(front: str, ca: str) -> Answer:
    import openai

    http_client = openai.DefaultHttpxClient(transport=headrace.httpx2.Transport(ca, http3="only"))
    with openai.OpenAI(base_url=f"{front}/v1", api_key="any", http_client=http_client) as client:
        with client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return text, stream.response.http_version


async def openai_async(front: str, ca: str) -> Answer:
    import openai

    http_client = openai.DefaultAsyncHttpxClient(transport=headrace.httpx2.AsyncTransport(ca, http3="only"))
    async with openai.AsyncOpenAI(base_url=f"{front}/v1", api_key="any", http_client=http_client) as client:
        stream = await client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
        async with stream:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return text, stream.response.http_version


def anthropic_sync(front: str, ca: str) -> Answer:
    import anthropic

    http_client = anthropic.DefaultHttpxClient(transport=headrace.httpx2.Transport(ca, http3="only"))
    with anthropic.Anthropic(base_url=front, api_key="any", http_client=http_client) as client:
        with client.messages.stream(model="scripted", max_tokens=99, messages=MESSAGES) as stream:
            return "".join(stream.text_stream), stream.response.http_version


async def anthropic_async(front: str, ca: str) -> Answer:
    import anthropic

    http_client = anthropic.DefaultAsyncHttpxClient(
        transport=headrace.httpx2.AsyncTransport(ca, http3="only")
    )
    async with anthropic.AsyncAnthropic(base_url=front, api_key="any", http_client=http_client) as client:
        async with client.messages.stream(model="scripted", max_tokens=99, messages=MESSAGES) as stream:
            return "".join([text async for text in stream.text_stream]), stream.response.http_version


@pytest.mark.parametrize("sdk", [openai_sync, openai_async, anthropic_sync, anthropic_async])
async def test_the_sdks_stream_through_other_servers(
    peer: peers.Proxy, peer_folder: Path, dialects: Dialects, sdk: Callable[[str, str], Any]
) -> None:
    ca = str(peer_folder / "ca.pem")
    if asyncio.iscoroutinefunction(sdk):
        answer = await sdk(peer.origin, ca)
    else:
        answer = await asyncio.to_thread(sdk, peer.origin, ca)
    assert answer == (ANSWER, "HTTP/3")
    await eventually(lambda: states(dialects) == ["done"], "it was not sent to its end")
