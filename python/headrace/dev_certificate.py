"""A development certificate: a small authority of one's own, and a leaf for this machine.

In: a folder. Out: PEM texts, which are made when they are missing or about to expire. A client trusts the
server only if it trusts `ca.pem`: `headrace chat` does so by itself, and browsers and other programs must be
told.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

from headrace import _engine

LIFETIME = dt.timedelta(days=90)
RENEW_BEFORE = dt.timedelta(days=7)
CLOCK_ERROR = dt.timedelta(hours=1)
"""How much the clock of a client may be behind ours."""


class Certificate(NamedTuple):
    """PEM texts: of the leaf, of its key, and of the authority that signed it."""

    chain_pem: str
    key_pem: str
    ca_pem: str


def state_folder() -> Path:
    """Where headrace keeps what it has made: `$XDG_STATE_HOME/headrace`."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "headrace"


def ca_file() -> Path:
    """The file of the development authority, whether it is there or not."""
    return state_folder() / "ca.pem"


def ensure(folder: Path | None = None) -> tuple[Certificate, bool]:
    """The certificate in `folder`, and whether it was made just now."""
    folder = folder or state_folder()
    paths = [folder / name for name in ("cert.pem", "key.pem", "ca.pem")]
    if all(path.exists() for path in paths) and _is_fresh(paths[2]):
        return Certificate(*(path.read_text() for path in paths)), False
    folder.mkdir(parents=True, exist_ok=True)
    made = make([*_names(), "localhost", "127.0.0.1", "::1"])
    for path, text in zip(paths, made, strict=True):
        path.touch(mode=0o600 if path.name == "key.pem" else 0o644)
        path.write_text(text)
    return made, True


def make(names: list[str], lifetime: dt.timedelta = LIFETIME) -> Certificate:
    """A new authority and a leaf for `names` (host names and IP addresses), both ECDSA P-256.

    Raises `ConfigError` when a name cannot be in a certificate.
    """
    now = dt.datetime.now(dt.UTC)
    before, after = now - CLOCK_ERROR, now + lifetime
    return Certificate(*_engine.make_certificate(names, before.timestamp(), after.timestamp()))


def _names() -> list[str]:
    name = socket.gethostname()
    return [name] if name and name.isascii() else []


def _is_fresh(ca: Path) -> bool:
    """Whether an authority, and so the leaf that was made with it, holds for a while."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError:
        return False
    until = [str(found["notAfter"]) for found in context.get_ca_certs()]
    return bool(until) and ssl.cert_time_to_seconds(until[0]) - time.time() > RENEW_BEFORE.total_seconds()
