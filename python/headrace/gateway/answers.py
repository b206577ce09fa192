"""Answers of the gateway itself, in the words of the API that was asked.

In: a code, a sentence. Out: a status, headers and a JSON body. How each API tells an error is a column of the
table of dialects (`headrace.events.dialects`).
"""

from __future__ import annotations

import json
from typing import Any

from headrace.errors import kinds
from headrace.events import dialects
from headrace.exchange import Exchange

JSON = ("content-type", "application/json")

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
}
"""What the gateway refuses beside the engine's kinds: code, status, meaning."""


async def send_json(exchange: Exchange, status: int, value: Any) -> None:
    """A whole JSON answer."""
    await exchange.answer(status, [JSON], json.dumps(value).encode() + b"\n")


def status_of(code: str) -> int:
    """Of a refusal, or of one of the engine's kinds."""
    return REFUSALS[code][0] if code in REFUSALS else kinds()[code].status


async def send_error(exchange: Exchange, code: str, message: str, param: str | None = None) -> None:
    """An error, in the words of the API at the path that was asked."""
    status = status_of(code)
    await send_status(exchange, status, code, message, param, "1" if status == 503 else None)


async def send_status(
    exchange: Exchange, status: int, code: str, message: str, param: str | None, retry_after: str | None
) -> None:
    """An error with a status that is another's than the code's. `retry_after`: the field's value."""
    headers = [JSON]
    if status == 401:
        headers.append(("www-authenticate", "Bearer"))
    if retry_after is not None:
        headers.append(("retry-after", retry_after))
    body = dialects.error_body(exchange.request.path, status, code, message, param)
    await exchange.answer(status, headers, body)
