"""Answers of the gateway itself, in the words of the API that was asked, and readable to pages of other
origins.

In: a code, a sentence. Out: a status, headers and a JSON body. How each API tells an error is a column of the
table of dialects (`headrace.events.dialects`); which pages may read it, the section `cors` says.
"""

from __future__ import annotations

import json
from contextvars import ContextVar
from typing import Any

from headrace.config import Cors
from headrace.errors import kinds
from headrace.events import dialects
from headrace.exchange import Exchange, Request
from headrace.printable import clipped

JSON = ("content-type", "application/json")

REFUSALS = {
    "invalid_path": (
        400,
        "the path has dot segments, which a client resolves before it asks (RFC 3986 §5.2.4)",
    ),
    "invalid_api_key": (401, "the API key is missing or unknown"),
    "invalid_json": (400, "the body is not a JSON object, and which upstream serves it depends on its model"),
    "invalid_model": (400, "the body's `model` is not a text of at most 256 bytes"),
    "origin_not_allowed": (403, "the page's origin is not one of cors.origins"),
    "no_route": (404, "no upstream serves the path"),
    "model_not_found": (404, "no upstream serves the model"),
    "loop_detected": (
        508,
        "the request came round, its `Via` names this gateway: the `url` of an upstream leads back",
    ),
}
"""What the gateway refuses beside the engine's kinds: code, status, meaning."""


Fields = list[tuple[str, str]]

EXPOSED = "retry-after, request-id, x-request-id, openai-processing-ms, location, via"
"""What a page may read of an answer's fields beside those that every page may (Fetch §3.3.3)."""

OF_EVERY_ANSWER: ContextVar[Fields] = ContextVar("OF_EVERY_ANSWER", default=[])  # noqa: B039
"""The fields of every answer to the request that this task works for, relayed or our own. It is never changed
in place."""


def cors_fields(config: Cors, request: Request) -> Fields:
    """What lets the page that asks read its answer; nothing when no page asks, or it may not."""
    origin = request.header("origin")
    if origin is None or not config.origins:
        return []
    if "*" in config.origins:
        return [("access-control-allow-origin", "*"), ("access-control-expose-headers", EXPOSED)]
    if origin not in config.origins:
        return [("vary", "origin")]
    return [
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", EXPOSED),
        ("vary", "origin"),
    ]


def is_preflight(config: Cors, request: Request) -> bool:
    """Whether a browser asks if a page may ask. Without origins it is the model server's to answer."""
    asks = request.header("origin") and request.header("access-control-request-method")
    return request.method == "OPTIONS" and bool(asks) and bool(config.origins)


async def answer_preflight(config: Cors, exchange: Exchange) -> int:
    """Allows the page what it wants to send; returns the status."""
    request = exchange.request
    fields = cors_fields(config, request)
    if not any(name == "access-control-allow-origin" for name, _ in fields):
        origin = clipped(request.header("origin") or "")
        await send_error(exchange, "origin_not_allowed", f"the origin {origin} is not one of cors.origins")
        return status_of("origin_not_allowed")
    wanted = {
        "access-control-allow-methods": request.header("access-control-request-method"),
        "access-control-allow-headers": request.header("access-control-request-headers"),
        "access-control-allow-private-network": request.header("access-control-request-private-network"),
        "access-control-max-age": str(config.max_age_s),
    }
    fields = [*fields, *((name, value) for name, value in wanted.items() if value)]
    await exchange.answer(204, fields, b"")
    return 204


async def send(exchange: Exchange, status: int, fields: Fields, body: bytes) -> None:
    """A whole answer, with the fields that every answer to this request has."""
    common = OF_EVERY_ANSWER.get()
    names = {name for name, _ in common}
    kept = [(name, value) for name, value in fields if name.lower() not in names]
    await exchange.answer(status, [*kept, *common], body)


async def send_json(exchange: Exchange, status: int, value: Any) -> None:
    """A whole JSON answer."""
    await send(exchange, status, [JSON], json.dumps(value).encode() + b"\n")


def status_of(code: str) -> int:
    """Of a refusal, or of one of the engine's kinds."""
    return REFUSALS[code][0] if code in REFUSALS else kinds()[code].status


def meaning_of(code: str) -> str:
    """Of a refusal, or of one of the engine's kinds."""
    return REFUSALS[code][1] if code in REFUSALS else kinds()[code].sentence


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
    await send(exchange, status, headers, body)
