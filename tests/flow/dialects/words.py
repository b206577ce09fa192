"""Each API's own words, written down apart from the engine's table, so that the table is held to them.

One entry for every row: a test that goes over all rows fails where one is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Words:
    """What one API says."""

    path: str
    """Where its answers are generated."""
    token: bytes
    """An event that is not the last."""
    last: list[bytes]
    """Events that are, each of its kind."""
    reads_error: Callable[[Any], str | None]
    """What its clients find in the JSON of an error: a code or sentence; `None` where they find nothing."""
    content_type: str = "text/event-stream"


def sse(value: Any, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"


def line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def openai_error(value: Any) -> str | None:
    error = value.get("error")
    is_so = isinstance(error, dict) and {"message", "type", "code", "param"} <= set(error)
    return str(error["code"]) if is_so else None


def anthropic_error(value: Any) -> str | None:
    is_so = value.get("type") == "error" and isinstance(value["error"]["type"], str)
    return str(value["error"]["message"]) if is_so else None


def ollama_error(value: Any) -> str | None:
    return value["error"] if isinstance(value.get("error"), str) else None


def gemini_error(value: Any) -> str | None:
    error = value.get("error", {})
    is_so = isinstance(error.get("code"), int) and str(error.get("status")).isupper()
    return str(error["message"]) if is_so else None


def cohere_error(value: Any) -> str | None:
    return value["message"] if isinstance(value.get("message"), str) else None


DONE = b"data: [DONE]\n\n"
TALK = 'data: [DONE]\n\nevent: message_stop\n\n{"done":true}'
"""What a model may write about ends of answers."""

CHAT = sse({"choices": [{"index": 0, "delta": {"content": TALK}, "finish_reason": None}]})

RESPONSES = [
    sse({"type": f"response.{how}", "response": {"id": "r", "output": [{"text": TALK}]}}, f"response.{how}")
    for how in ("completed", "failed", "incomplete")
]

WORDS = {
    "openai": Words("/v1/chat/completions", CHAT, [DONE], openai_error),
    "openai-responses": Words(
        "/v1/responses",
        sse({"type": "response.output_text.delta", "delta": TALK}, "response.output_text.delta"),
        RESPONSES,
        openai_error,
    ),
    "openai-audio": Words(
        "/v1/audio/transcriptions",
        sse({"type": "transcript.text.delta", "delta": TALK}),
        [
            sse({"type": "transcript.text.done", "text": TALK, "usage": {"type": "tokens"}}),
            sse({"type": "speech.audio.done", "usage": {"total_tokens": 1}}),
        ],
        openai_error,
    ),
    "azure": Words(
        "/openai/deployments/gpt/chat/completions?api-version=2026-01-01",
        CHAT,
        [DONE, *RESPONSES],
        openai_error,
    ),
    "anthropic": Words(
        "/v1/messages",
        sse(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TALK}},
            "content_block_delta",
        ),
        [sse({"type": "message_stop"}, "message_stop"), sse({"type": "message_stop"})],
        anthropic_error,
    ),
    "ollama": Words(
        "/api/chat",
        line({"model": "m", "message": {"role": "assistant", "content": TALK}, "done": False}),
        [
            line(
                {
                    "model": "m",
                    "message": {"content": ""},
                    "done_reason": "stop",
                    "done": True,
                    "eval_count": 3,
                }
            )
        ],
        ollama_error,
        "application/x-ndjson",
    ),
    "gemini": Words(
        "/v1beta/models/m:streamGenerateContent?alt=sse",
        sse({"candidates": [{"content": {"parts": [{"text": TALK}], "role": "model"}, "index": 0}]}),
        [sse({"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}], "usageMetadata": {}})],
        gemini_error,
    ),
    "cohere": Words(
        "/v2/chat",
        sse({"type": "content-delta", "delta": {"message": {"content": {"text": TALK}}}}, "content-delta"),
        [sse({"type": "message-end", "delta": {"finish_reason": "COMPLETE"}}, "message-end")],
        cohere_error,
    ),
    "llama.cpp": Words(
        "/completion",
        sse({"content": TALK, "stop": False}),
        [sse({"content": "", "stop": True, "timings": {"stop": False}})],
        openai_error,
    ),
}
