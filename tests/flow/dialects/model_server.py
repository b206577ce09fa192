"""A model server of a few lines, whose answers are exactly the bytes that a test gives it.

In: what is answered, and whether the answer then ends. Out: the requests that came, and what became of each.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass
class Asked:
    """One request."""

    method: str
    target: str
    fields: dict[str, str]
    body: bytes
    is_left: bool = False
    """The gateway closed the connection before the answer's end."""


@dataclass
class ModelServer:
    """`async with ModelServer(...) as model:`"""

    content_type: str = "text/event-stream"
    pieces: list[bytes] = field(default_factory=list)
    """What a POST is answered with, each in a chunk of its own."""
    ends: bool = True
    """The body ends behind them; if not, the server says no more."""
    asked: list[Asked] = field(default_factory=list)
    """POSTs."""
    probes: list[Asked] = field(default_factory=list)
    """GETs: the gateway asks how it is."""
    url: str = ""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def __aenter__(self) -> ModelServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        while self._writers:
            await asyncio.sleep(0.001)

    @property
    def upstream(self) -> dict[str, object]:
        """For `upstreams=[...]` of a gateway."""
        return {"url": self.url, "models": ["*"]}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                await self._answer(await self._read(reader), reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Asked:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        return Asked(method, target, fields, body)

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if asked.method == "GET":
            self.probes.append(asked)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            return
        self.asked.append(asked)
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {self.content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        for piece in self.pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        if self.ends:
            writer.write(b"0\r\n\r\n")
        else:
            await reader.read(1)
            asked.is_left = True
            raise ConnectionError
