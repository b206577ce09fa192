"""A server that is not ours: it is asked for no more than is needed, and what it says is understood."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace import dev_certificate
from headrace.errors import ConfigError
from headrace.gateway import Gateway
from headrace_lab.report.page import finding
from headrace_lab.run.results import command_of
from headrace_lab.run.target import Target
from headrace_lab.scenarios.scenario import load, parse, shipped
from tests.helpers.serving import origin

SWEPT = """
title = "How much loss does it take until people see it?"
[link]
delay_ms = 30
[sweep]
key = "loss"
values = [0.0, 0.02]
[load]
streams = 3
tokens = 12
limit_s = 4
script = { shape = "openai" }
[run]
servers = ["headrace"]
protocols = ["http3", "http2", "http1"]
seeds = 2
baseline = "headrace/http1"
[show]
measures = ["late_p99_ms", "gap_p99_ms", "cut_streams"]
"""


class RealServer:
    """A small server as somebody else would write it: JSON with spaces, no numbers in its events. It makes as
    many tokens as it is asked for, and without a bound it never ends."""

    def __init__(self, status: int = 200, content_type: str = "text/event-stream") -> None:
        self.status, self.content_type = status, content_type
        self.asked: list[dict[str, Any]] = []
        self.fields: list[str] = []
        self.port = 0

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [line for line in head.lower().split("\r\n") if line.startswith("content-length")]
                self.fields.append(head.lower())
                self.asked.append(json.loads(await reader.readexactly(int(lengths[0].split(":")[1]))))
                await self._answer(writer)
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        writer.write(
            f"HTTP/1.1 {self.status} X\r\ncontent-type: {self.content_type}\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        if self.status >= 400 or self.content_type != "text/event-stream":
            self._chunk(writer, b'{"error": {"message": "no such model: \x1b[31mx"}}')
        else:
            left = self.asked[-1].get("max_tokens", 10**9)
            while left:
                delta = {"choices": [{"index": 0, "delta": {"content": "word "}}]}
                self._chunk(writer, f"data: {json.dumps(delta)}\n\n".encode())
                await writer.drain()
                await asyncio.sleep(0.005)
                left -= 1
            end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
            self._chunk(writer, f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())
        self._chunk(writer, b"")

    def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))


async def lab(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`headrace lab ...`, in a folder; the server answers meanwhile."""
    command = [sys.executable, "-m", "headrace", "lab", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, cwd=cwd, capture_output=True, text=True, timeout=90, check=False
    )


def result_in(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "swept.toml").write_text(SWEPT)
    return tmp_path


async def test_a_target_is_asked_once_for_each_answer_and_for_a_bounded_one(folder: Path) -> None:
    """No sweep over a link that is not there, one seed, and as many tokens as the scenario's answers have."""
    server = RealServer()
    async with server.started() as url:
        more = ("--model", "real", "--header", "authorization: Bearer secret", "--out", "r")
        done = await lab("run", "./swept.toml", "--target", url, *more, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(server.asked) == 3
    assert "3 answers of at most 12 tokens each" in done.stderr
    for asked in server.asked:
        assert asked["max_tokens"] == 12
        assert asked["model"] == "real"
        assert set(asked) == {"model", "stream", "messages", "max_tokens"}
    assert all("authorization: bearer secret" in fields for fields in server.fields)
    result = result_in(folder / "r")
    (cell,) = result["cells"]
    assert cell["point"] is None
    assert cell["measures"]["cut_streams"] == 0
    assert cell["measures"]["gap_p99_ms"] > 0
    assert [len(stream["at"]) for stream in cell["timeline"]["streams"]] == [12, 12, 12]
    assert "secret" not in json.dumps(result)
    assert "loss" not in finding(result)


async def test_an_answer_that_outlives_the_lab_is_not_lost(folder: Path) -> None:
    """It is called unfinished, and counts as far as it came."""
    server = RealServer()
    async with server.started() as url:
        body = ("--body", '{"max_tokens": 1000000}', "--out", "r")
        done = await lab("run", "./swept.toml", "--target", url, *body, cwd=folder)
    assert done.returncode == 0, done.stderr
    (cell,) = result_in(folder / "r")["cells"]
    assert cell["errors"] == {"unfinished": 3}
    assert cell["measures"]["cut_streams"] == 0
    assert cell["measures"]["gap_p99_ms"] > 0


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (RealServer(404), '3 of 3 requests were answered with status 404: {"error": {"message": "no such'),
        (RealServer(content_type="application/json"), "and no token was found in them: expected an answer"),
    ],
    ids=["refused", "not streamed"],
)
async def test_an_empty_measurement_is_an_error_that_says_why(
    server: RealServer, words: str, folder: Path
) -> None:
    """With the server's own words, but no control character of them."""
    async with server.started() as url:
        done = await lab("run", "./swept.toml", "--target", url, cwd=folder)
    assert done.returncode == 2
    assert words in done.stderr
    assert "\x1b" not in done.stderr


async def test_a_certificate_is_looked_for_where_the_command_is_run(
    gateway: Gateway, certificate: dev_certificate.Certificate, folder: Path
) -> None:
    """Clients run in a folder of their own; over each protocol the file is found all the same."""
    (folder / "mine.pem").write_text(certificate.ca_pem)
    more = ("--target", origin(gateway), "--ca", "mine.pem", "--model", "scripted", "--out", "r")
    done = await lab("run", "./swept.toml", *more, cwd=folder)
    assert done.returncode == 0, done.stderr
    cells = result_in(folder / "r")["cells"]
    assert [cell["protocol"] for cell in cells] == ["http3", "http2", "http1"]
    assert all(not cell["errors"] for cell in cells), cells
    missing = await lab("run", "./swept.toml", "--target", origin(gateway), "--ca", "no.pem", cwd=folder)
    assert missing.returncode == 2
    assert "--ca: there is no file no.pem" in missing.stderr


NEED_MORE = {"faults", "handover", "nat-rebind", "outage", "saturation", "slow-reader"}


@pytest.mark.parametrize("name", shipped())
def test_every_scenario_can_be_run_on_a_target_or_says_why_not(name: str) -> None:
    """What is left has one point, no link, no script, and only measures that a target gives."""
    target = Target("https://llm.example.org")
    if name in NEED_MORE:
        with pytest.raises(ConfigError, match="cannot be run with --target: it needs"):
            target.scenario(load(name))
        return
    made = target.scenario(load(name))
    assert made.points() == [None]
    assert not made.link
    assert not made.load.script
    assert made.show.measures
    assert made.name == f"{name}-llm.example.org"


def test_the_bound_of_an_answer_is_said_in_the_words_of_the_api() -> None:
    scenario = parse(SWEPT, "swept.toml")

    def asked(path: str, **more: Any) -> dict[str, Any]:
        return Target("https://x", path, **more).request(scenario)

    assert asked("/v1/chat/completions")["max_tokens"] == 12
    assert asked("/v1/responses") == {
        "model": "",
        "stream": True,
        "input": "Write a long story.",
        "max_output_tokens": 12,
    }
    assert asked("/v1/messages?beta=true", max_tokens=7)["max_tokens"] == 7
    assert asked("/api/generate")["options"] == {"num_predict": 12}
    assert asked("/v1/completions")["prompt"]
    assert asked("/v1/chat/completions", body={"max_tokens": 5, "temperature": 0})["max_tokens"] == 5


def test_no_key_is_written_into_a_result() -> None:
    """The command line stands in a result; the values of header fields do not."""
    for given in (["--header", "authorization: Bearer secret"], ["--header=x-api-key: secret"]):
        command = command_of(["lab", "run", "fan-out", *given, "--quick"])
        assert "secret" not in command
        assert command.startswith("headrace lab run fan-out ")
        assert "header" in command
        assert command.endswith("--quick")
