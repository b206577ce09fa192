"""Where a request goes: RFC 6454's origin, always of `https`."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from headrace.errors import ConfigError


class Origin(NamedTuple):
    host: str
    port: int

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 443 else f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Of `https://host[:port]`. Raises `ConfigError`."""
        try:
            url = urlsplit(text)
            if url.scheme == "https" and url.hostname:
                host = url.hostname
                return cls(host if host.isascii() else host.encode("idna").decode(), url.port or 443)
        except ValueError:
            pass  # No port, no address, or no name is in it.
        raise ConfigError(detail=f"expected https://host or https://host:port, got {text!r}")
