"""An ASGI app that relays to the scripted model, for ASGI servers as peers. It sends each piece when it
comes.

It knows its upstream from `HEADRACE_LAB_UPSTREAM`, because ASGI servers import an app by name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from headrace_lab.peers import upstream

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    work = asyncio.ensure_future(_relay(scope, bytes(body), send))
    gone = asyncio.ensure_future(_until_gone(receive))
    await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    work.cancel()
    await asyncio.gather(work, gone, return_exceptions=True)
    if not work.cancelled() and work.exception():
        # The server resets the answer of an app that fails.
        raise work.exception()  # type: ignore[misc]


async def _relay(scope: dict[str, Any], body: bytes, send: Send) -> None:
    address = os.environ["HEADRACE_LAB_UPSTREAM"]
    async with upstream.ask(address, scope["method"], scope["path"], body) as answer:
        kind = answer.fields.get("content-type", "text/plain").encode()
        await send(
            {"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", kind)]}
        )
        async for piece in answer.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
