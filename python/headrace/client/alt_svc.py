"""Which origins have said that they speak HTTP/3, and where (RFC 7838).

In: the `Alt-Svc` fields of answers over TCP. Out: the host and port of an origin's HTTP/3 service, until the
announcement expires. When a path is given, announcements are kept in that file, so that the next process
knows them. A file that cannot be read counts as empty, and one that cannot be written is not written.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

DEFAULT_MAX_AGE_S = 24 * 3600.0
MAX_ENTRIES = 1000
"""When there are more, the ones that expire first are forgotten."""

# protocol-id "=" quoted alt-authority, then parameters (RFC 7838 §3); a value is a token or quoted.
_VALUE = r'(?:"[^"]*"|[^\s;,"]*)'
_ALTERNATIVE = re.compile(rf"""\s*([\w!#$%&'*+.^`|~-]+)="([^"]*)"((?:\s*;\s*\w+={_VALUE})*)\s*(?:,|$)""")
_PARAMETER = re.compile(rf";\s*(\w+)=({_VALUE})")


_PORT = re.compile(r"[0-9]{1,5}")


class Alternative(NamedTuple):
    host: str
    """Empty: the origin's own."""
    port: int
    max_age: float


def parse(value: str) -> list[Alternative] | None:
    """The `h3` alternatives in a field's value, best first; `None` for `clear`.

    The list ends where the value is malformed. Alternatives for other protocols are left out.
    """
    if value.strip() == "clear":
        return None
    found = []
    position = 0
    while match := _ALTERNATIVE.match(value, position):
        position = match.end()
        protocol, authority, parameters = match.groups()
        host, _, port = authority.rpartition(":")
        given = dict(_PARAMETER.findall(parameters))
        age = given.get("ma", "").strip('"')
        if protocol == "h3" and _PORT.fullmatch(port) and 0 < int(port) < 65536:
            max_age = float(age[:12]) if age.isdecimal() else DEFAULT_MAX_AGE_S
            found.append(Alternative(host.strip("[]"), int(port), max_age))
        if position >= len(value):
            break
    return found


class AltSvcCache:
    """The announcements of all origins. Any number of threads may use it. `path`: where it is kept between
    processes."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, int], tuple[str, int, float]] = {}
        if path:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
                self._read(path)

    def note(self, origin: tuple[str, int], value: str) -> None:
        """Notes the `Alt-Svc` field of an answer that came from `origin` over TCP, authenticated."""
        found = parse(value)
        host, port = origin
        with self._lock:
            before = dict(self._entries)
            if found:
                best = found[0]
                self._entries[host, port] = (best.host or host, best.port, self._clock() + best.max_age)
            elif found is None:
                self._entries.pop((host, port), None)
            if len(self._entries) > MAX_ENTRIES:
                del self._entries[min(self._entries, key=lambda key: self._entries[key][2])]
            if self._path and self._differs(before):
                with contextlib.suppress(OSError):
                    self._write(self._path)

    def find(self, origin: tuple[str, int]) -> tuple[str, int] | None:
        """The host and port of the origin's HTTP/3 service; `None` when it has announced none that still
        holds."""
        with self._lock:
            host, port, until = self._entries.get((origin[0], origin[1]), ("", 0, 0.0))
            return (host, port) if until > self._clock() else None

    def _differs(self, before: dict[tuple[str, int], tuple[str, int, float]]) -> bool:
        """Whether the file must be written. Every answer renews its entry, so a change of its expiry by less
        than a minute does not count."""
        if before.keys() != self._entries.keys():
            return True
        return any(
            old[:2] != new[:2] or abs(old[2] - new[2]) > 60
            for old, new in zip(before.values(), self._entries.values(), strict=True)
        )

    def _read(self, path: Path) -> None:
        for entry in json.loads(path.read_text()):
            key, port = (str(entry["host"]), int(entry["port"])), int(entry["to_port"])
            if 0 < port < 65536:
                self._entries[key] = (str(entry["to_host"]), port, float(entry["until"]))

    def _write(self, path: Path) -> None:
        entries = [
            {"host": host, "port": port, "to_host": to_host, "to_port": to_port, "until": until}
            for (host, port), (to_host, to_port, until) in self._entries.items()
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(descriptor, "w") as file:
            json.dump(entries, file)
        Path(name).replace(path)
