"""Answers of the gateway itself, in the shape that the client of that path reads.

In: a code, a sentence. Out: a status, headers and a JSON body. OpenAI's clients read `error.message` and
`error.code`, Anthropic's `type: error` with `error.type`, Ollama's a text in `error`.
"""

from __future__ import annotations

import json
from typing import Any

from headrace.errors import kinds
from headrace.exchange import Exchange

REFUSALS = {
    "invalid_path": (
        400,
        "the path has dot segments, which a client resolves before it asks (RFC 3986 §5.2.4)",
    ),
    "invalid_api_key": (401, "the API key is missing or unknown"),
    "invalid_json": (400, "the body is not a JSON object, and which upstream serves it depends on its model"),
    "invalid_model": (400, "the body's `model` is not a text of at most 256 bytes"),
    "no_route": (404, "no upstream serves the path"),
    "model_not_found": (404, "no upstream serves the model"),
    "model_unavailable": (503, "no upstream that is reachable now is known to serve the model"),
}
"""What the gateway refuses beside the engine's kinds: code, status, meaning."""

# What the SDKs name these statuses; others by their hundreds.
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "upstream_error",
    503: "overloaded_error",
    504: "timeout_error",
}


async def send_json(
    exchange: Exchange, status: int, value: Any, headers: list[tuple[str, str]] | None = None
) -> None:
    """A whole JSON answer."""
    body = json.dumps(value).encode() + b"\n"
    await exchange.answer(status, [("content-type", "application/json"), *(headers or [])], body)


def status_of(code: str) -> int:
    """Of a refusal, or of one of the engine's kinds."""
    return REFUSALS[code][0] if code in REFUSALS else kinds()[code].status


async def send_error(exchange: Exchange, code: str, message: str, param: str | None = None) -> None:
    """An error, shaped for the path that was asked."""
    status, headers = status_of(code), []
    if status == 401:
        headers.append(("www-authenticate", "Bearer"))
    if status == 503:
        headers.append(("retry-after", "1"))
    await send_json(
        exchange, status, error_value(exchange.request.path, status, code, message, param), headers
    )


def error_value(path: str, status: int, code: str, message: str, param: str | None) -> dict[str, Any]:
    if path.startswith("/api/"):
        return {"error": message, "code": code}
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"message": message, "type": kind, "param": param, "code": code}}
