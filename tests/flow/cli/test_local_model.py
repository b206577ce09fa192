"""A real model's answer: SmolLM2 in llama.cpp, token by token, stopped by a reset that frees its slot."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Connection
from headrace.config import Local
from headrace.gateway import Gateway
from headrace.local import model as local
from tests.helpers.answers import frames
from tests.helpers.requests import JSON
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]

pytestmark = pytest.mark.skipif(local.bundled_model() is None, reason="run `headrace model install` first")


@pytest.fixture
async def model() -> AsyncIterator[local.LocalModel]:
    async with local.serve(Local(parallel=2, context=512, threads=2)) as served:
        yield served


@pytest.fixture
async def gateway(model: local.LocalModel, start: Start) -> Gateway:
    return await start(upstreams=[model.as_upstream().model_dump()])


def chat(tokens: int, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": "Write about water."}]
    body = {"model": local.MODEL_NAME, "stream": True, "max_tokens": tokens, "messages": messages}
    return json.dumps(body | {"ignore_eos": True, "seed": 1, "temperature": 0} | fields).encode()


def busy(model: local.LocalModel) -> int:
    with urllib.request.urlopen(f"{model.url}/slots") as answer:
        return sum(slot["is_processing"] for slot in json.load(answer))


async def test_a_real_answer_comes_token_by_token(gateway: Gateway, dial: Dial) -> None:
    response = (await dial(gateway)).request("POST", "/v1/chat/completions", JSON, chat(20))
    assert await response.head() == 200
    chunks = [chunk async for batch in response.chunks() for chunk in batch]
    *events, last = frames(chunks)
    assert all(event.count(b"\n\n") == 1 for event in events)
    assert last == b"data: [DONE]\n\n"
    pieces = [json.loads(event[6:])["choices"][0]["delta"].get("content") for event in events]
    assert sum(piece is not None for piece in pieces) == 20


async def test_stop_frees_the_slot_and_the_neighbour_goes_on(
    model: local.LocalModel, gateway: Gateway, dial: Dial
) -> None:
    connection = await dial(gateway)
    stopped = connection.request("POST", "/v1/chat/completions", JSON, chat(480))
    neighbour = connection.request("POST", "/v1/chat/completions", JSON, chat(60))
    await asyncio.gather(stopped.head(), neighbour.head())
    assert await asyncio.to_thread(busy, model) == 2
    stopped.stop()
    whole = asyncio.create_task(neighbour.read())
    # llama.cpp notices at its next token, and during a silent prefill when it looks, once a second.
    async with asyncio.timeout(5):
        while await asyncio.to_thread(busy, model) == 2:
            await asyncio.sleep(0.005)
    assert (await whole).endswith(b"data: [DONE]\n\n")
    assert await asyncio.to_thread(busy, model) == 0


async def test_completions_embeddings_and_slots_pass_through(
    model: local.LocalModel, gateway: Gateway, dial: Dial
) -> None:
    connection = await dial(gateway)
    plain = json.dumps({"model": local.MODEL_NAME, "prompt": "Water is", "max_tokens": 3}).encode()
    response = connection.request("POST", "/v1/completions", JSON, plain)
    assert await response.head() == 200
    assert json.loads(await response.read())["object"] == "text_completion"
    response = connection.request("GET", "/v1/models")
    assert json.loads(await response.read())["data"][0]["id"] == local.MODEL_NAME
    response = connection.request("GET", "/slots")
    assert len(json.loads(await response.read())) == 2


PARENT = """
import asyncio
from headrace.config import Local
from headrace.local import model as local

async def main():
    async with local.serve(Local(parallel=1, context=256)) as served:
        print(served.pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_the_models_process_ends_with_its_parent_however_that_ends() -> None:
    """Its standard input is a pipe of its parent's: a SIGKILL closes it, too."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await asyncio.to_thread(parent.stdout.readline))
    assert os.path.exists(f"/proc/{pid}")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    await eventually(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    """A zombie does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_no_process_is_left_behind() -> None:
    async with local.serve(Local(parallel=1, context=256)) as served:
        pid = served.pid
    await eventually(lambda: not os.path.exists(f"/proc/{pid}"))
