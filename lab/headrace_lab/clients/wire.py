"""What every measuring client can do, whichever protocol it speaks."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from headrace_lab.clients.sink import Sink


@dataclass(frozen=True)
class Where:
    """Whom to ask. `ca`: whom to trust; without it, nobody's certificate is checked. `resumed`: with a ticket
    of a connection before, where the client can."""

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
        """For clients over TCP."""
        if not self.is_tls:
            return None
        context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
        if self.ca is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(alpn)
        return context


@dataclass(frozen=True)
class Ask:
    """One request. Names of fields are lower case."""

    path: str
    fields: tuple[tuple[str, str], ...]
    body: bytes
    method: str = "POST"


class Handle(Protocol):
    """One answer that is under way."""

    def stop(self) -> None:
        """Says that no more of it is wanted, as the protocol does: a reset, or the connection's close."""

    def pause(self) -> None:
        """Reads no more of it."""

    def resume(self) -> None: ...


class Wire(Protocol):
    """One connection; over HTTP/1.1, one for each answer."""

    async def connect(self) -> None:
        """Raises `OSError` or an error of the client's own."""

    async def ask(self, ask: Ask, sink: Sink) -> Handle:
        """Sends a request; the answer goes to the sink, whose `sent_ns` is set."""

    def migrate(self) -> None:
        """Moves to another path on purpose. Only headrace's own client can."""

    def stats(self) -> dict[str, float]: ...
    def close(self) -> None: ...
