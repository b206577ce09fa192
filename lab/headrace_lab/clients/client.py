"""What every client that measures can do, whichever protocol it speaks."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from headrace_lab.clients.sink import Sink


@dataclass(frozen=True)
class Destination:
    """The server to ask. `ca`: the certificates to trust; without it, no certificate is checked.
    `resumed`: connections use a ticket of an earlier one, where the client can."""

    url: str
    ca: Path | None = None
    resumed: bool = False

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def tls(self, alpn: list[str]) -> ssl.SSLContext | None:
        """Makes the TLS context of a client over TCP."""
        if not self.is_tls:
            return None
        context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
        if self.ca is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(alpn)
        return context


@dataclass(frozen=True)
class Request:
    """One request. The names of its fields are in lower case."""

    path: str
    fields: tuple[tuple[str, str], ...]
    body: bytes
    method: str = "POST"


class Handle(Protocol):
    """One answer that is under way."""

    def stop(self) -> None:
        """Says that no more of the answer is wanted, in the protocol's way: by a reset, or by closing the
        connection."""

    def pause(self) -> None:
        """Stops reading the answer."""

    def resume(self) -> None: ...


class Client(Protocol):
    """One connection; over HTTP/1.1, one for each answer."""

    async def connect(self) -> None:
        """Begins the connection. Raises `OSError` or an error of the client's own."""

    async def send(self, request: Request, sink: Sink) -> Handle:
        """Sends a request; the answer goes to the sink, whose `sent_ns` is set."""

    def migrate(self) -> None:
        """Moves to another path on purpose. Only headrace's own client can do that."""

    def stats(self) -> dict[str, float]: ...
    def close(self) -> None: ...
