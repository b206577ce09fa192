"""Where a request goes: an origin (RFC 6454), always of `https`."""

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
        """Reads `https://host[:port]`; a path after it is ignored. Raises `ConfigError`."""
        try:
            url = urlsplit(text)
            if url.scheme == "https" and url.hostname:
                host = url.hostname
                return cls(host if host.isascii() else host.encode("idna").decode(), url.port or 443)
        except ValueError:
            pass  # The port, the address or the name in it cannot be one.
        raise ConfigError(detail=f"expected https://host or https://host:port, got {text!r}")
