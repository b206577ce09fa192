"""A scripted server that answers in each of the APIs' own words, and one real MCP server beside them.

In: requests of OpenAI's chat and Responses APIs, Anthropic's Messages API, Ollama's chat API, and MCP at
`/mcp`. Out: always the same answer, `ANSWER`, and a record of what became of each stream. A prompt with
`million` in it is answered without end. It runs in a thread of its own, so that tests may block.

`headrace_lab.model.source` has faults and schedules; this has the events that an SDK wants to see.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import uvicorn
from mcp.server import MCPServer
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

WORDS = [f" t{number}" for number in range(50)]
ANSWER = "".join(WORDS)
INTERVAL_S = 0.002


@dataclass
class Run:
    """What became of one streamed answer."""

    path: str
    state: Literal["running", "done", "aborted"] = "running"
    """`done`: the last event was sent."""


@dataclass
class Dialects:
    """The server. `with Dialects() as dialects:`"""

    models: tuple[str, ...] = ("scripted",)
    runs: list[Run] = field(default_factory=list)
    tool_calls: list[str] = field(default_factory=list)
    url: str = ""

    def __enter__(self) -> Dialects:
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(self._app(), log_config=None, ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="dialects")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    def _app(self) -> Any:
        server = MCPServer("dialects", log_level="ERROR")

        @server.tool()
        async def answer(question: str) -> str:
            """Answers any question."""
            self.tool_calls.append(question)
            return ANSWER

        async def list_models(_: Request) -> Response:
            return JSONResponse({"object": "list", "data": [{"id": name} for name in self.models]})

        server.custom_route("/v1/models", ["GET"])(list_models)
        for path, (dialect, content_type) in DIALECTS.items():
            server.custom_route(path, ["POST"])(self._streaming(dialect, content_type))
        return server.streamable_http_app()

    def _streaming(self, dialect: Dialect, content_type: str) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            body = await request.body()
            words = itertools.cycle(WORDS) if b"million" in body else iter(WORDS)
            run = Run(request.url.path)
            self.runs.append(run)
            events = dialect(words, json.loads(body)["model"])
            return StreamingResponse(_paced(events, run), media_type=content_type)

        return endpoint


async def _paced(events: Iterator[str], run: Run) -> AsyncIterator[str]:
    try:
        for event in events:
            await asyncio.sleep(INTERVAL_S)
            yield event
        run.state = "done"
    finally:
        if run.state == "running":
            run.state = "aborted"


Dialect = Callable[[Iterator[str], str], Iterator[str]]
"""Words and the model's name in, the events of one answer out."""


def _sse(payload: dict[str, Any], event: str = "") -> str:
    return (f"event: {event}\n" if event else "") + f"data: {json.dumps(payload)}\n\n"


def openai_chat(words: Iterator[str], model: str) -> Iterator[str]:
    def chunk(delta: dict[str, str], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _sse(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "created": 0,
                "model": model,
                "choices": [choice],
            }
        )

    yield chunk({"role": "assistant"})
    for word in words:
        yield chunk({"content": word})
    yield chunk({}, "stop")
    yield "data: [DONE]\n\n"


def openai_responses(words: Iterator[str], model: str) -> Iterator[str]:
    numbers = itertools.count()
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}

    def event(kind: str, **fields: Any) -> str:
        return _sse({"type": kind, "sequence_number": next(numbers), **fields}, kind)

    def response(status: str, text: str | None) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": []}
        message = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 0,
            "model": model,
            "status": status,
            "output": [] if text is None else [message],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        }

    text = ""
    yield event("response.created", response=response("in_progress", None))
    for word in words:
        text += word
        yield event("response.output_text.delta", delta=word, logprobs=[], **place)
    yield event("response.output_text.done", text=text, logprobs=[], **place)
    yield event("response.completed", response=response("completed", text))


def anthropic_messages(words: Iterator[str], model: str) -> Iterator[str]:
    def event(kind: str, **fields: Any) -> str:
        return _sse({"type": kind, **fields}, kind)

    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 0},
    }
    yield event("message_start", message=message)
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for word in words:
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    yield event("content_block_stop", index=0)
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    yield event("message_delta", delta=stop, usage={"output_tokens": len(WORDS)})
    yield event("message_stop")


def ollama_chat(words: Iterator[str], model: str) -> Iterator[str]:
    def line(content: str, **fields: Any) -> str:
        message = {"role": "assistant", "content": content}
        started = "2026-01-01T00:00:00Z"
        return json.dumps({"model": model, "created_at": started, "message": message, **fields}) + "\n"

    for word in words:
        yield line(word, done=False)
    yield line("", done=True, done_reason="stop")


DIALECTS: dict[str, tuple[Dialect, str]] = {
    "/v1/chat/completions": (openai_chat, "text/event-stream"),
    "/v1/responses": (openai_responses, "text/event-stream"),
    "/v1/messages": (anthropic_messages, "text/event-stream"),
    "/api/chat": (ollama_chat, "application/x-ndjson"),
}
