"""The log: one line a record, whatever a peer said; and nobody waits for whoever reads it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.config import Log
from headrace.observe import log
from headrace.observe.line_writer import LineWriter
from headrace.observe.outcome import Outcome

FORGED = "x\n12:00:00 127.0.0.1 GET /forged HTTP/3 200 done\x1b[2J"


class Asked:
    """What the access log reads of an exchange."""

    id = 1

    class request:
        client = ("127.0.0.1", 5)
        method, path, protocol = "POST", "/v1/x", "HTTP/3"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def written(pipe: tuple[int, int], config: Log, **record: Any) -> list[str]:
    """What a record becomes."""
    handler = log.LineHandler(config, pipe[1])
    made = {"name": "headrace.x", "levelno": logging.INFO, "levelname": "INFO", "msg": "", **record}
    handler.emit(logging.makeLogRecord(made))
    handler.flush()
    return os.read(pipe[0], 1 << 20).decode().splitlines()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_peers_words_cannot_forge_a_line(form: Any, pipe: tuple[int, int]) -> None:
    lines = written(pipe, Log(format=form), msg="upstream %s is unhealthy", args=(FORGED,))
    assert len(lines) == 1
    assert lines[0].isprintable()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_cannot_forge_a_line_either(form: Any, pipe: tuple[int, int]) -> None:
    error = ValueError(FORGED)
    lines = written(pipe, Log(format=form), msg="failed", exc_info=(ValueError, error, None))
    assert all(line.isprintable() for line in lines)
    assert all(line.startswith("  | ") for line in lines[1:])
    assert len(lines) == (1 if form == "json" else 3)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_model_of_a_megabyte_is_a_short_line(
    form: Any, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handler = log.LineHandler(Log(format=form), pipe[1])
    monkeypatch.setattr(log.access_log, "handlers", [handler])
    # Whatever level another test has left.
    caplog.set_level(logging.INFO, log.access_log.name)
    monkeypatch.setattr(log.access_log, "propagate", False)
    for model in ("m" * (1 << 20), FORGED, "a status=200 cause=done", 'b"'):
        outcome = Outcome(status=404, cause="model_not_found", model=model)
        log.Access(Log(format=form)).write(Asked(), outcome, 0.1)  # type: ignore[arg-type]
    handler.flush()
    lines = os.read(pipe[0], 1 << 20).decode().splitlines()
    assert len(lines) == 4
    assert all(len(line) < 1000 and line.isprintable() for line in lines)
    if form == "json":
        assert json.loads(lines[2])["model"] == "a status=200 cause=done"
    else:
        assert lines[2].endswith('model="a status=200 cause=done"')
        assert lines[3].endswith(r'model="b\""')


def test_a_line_that_cannot_be_formatted_is_told(pipe: tuple[int, int]) -> None:
    assert written(pipe, Log(), msg="%d", args=("x",)) == [
        "a line of headrace.x could not be formatted: TypeError"
    ]


def test_a_pipe_that_nobody_reads_stops_nobody(pipe: tuple[int, int]) -> None:
    """What does not fit is dropped and counted; once somebody reads, the log says how many, and goes on."""
    writer = LineWriter(pipe[1], 100_000, lambda count: f"{count} dropped")
    for number in range(2000):
        writer.write(f"{number} {'x' * 990}")
    assert not writer.flush(0)
    assert 0 < writer.dropped < 2000
    got, whole = bytearray(), threading.Event()

    def read() -> None:
        while not got.endswith(b"the last\n"):
            got.extend(os.read(pipe[0], 1 << 16))
        whole.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert writer.flush(10)
    writer.write("the last")
    assert whole.wait(10)
    reader.join()
    lines = got.decode().splitlines()
    kept = [line for line in lines if "x" in line]
    assert len(kept) + writer.dropped == 2000
    told = [int(line.split()[0]) for line in lines if line.endswith("dropped")]
    assert sum(told) == writer.dropped
    assert [int(line.split()[0]) for line in kept] == sorted(int(line.split()[0]) for line in kept)


def test_a_descriptor_that_is_made_non_blocking_is_waited_for(pipe: tuple[int, int]) -> None:
    fcntl.fcntl(pipe[1], fcntl.F_SETFL, os.O_NONBLOCK)
    writer = LineWriter(pipe[1], 1 << 20, str)
    for _ in range(500):
        writer.write("y" * 999)
    left = 500_000
    while left:
        left -= len(os.read(pipe[0], 1 << 16))
    assert writer.flush(10)
    assert writer.dropped == 0


def test_without_a_reader_lines_are_lost_and_nothing_else() -> None:
    read, write = os.pipe()
    os.close(read)
    writer = LineWriter(write, 1000, str)
    for _ in range(3):
        writer.write("z")
        assert writer.flush(10)
    os.close(write)
