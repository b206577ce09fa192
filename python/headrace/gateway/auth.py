"""Who may ask.

In: a request's head. Out: the name of its key, or a refusal. Keys are random and long, so their plain SHA-256
can be kept; the keys themselves are nowhere.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from headrace.config import Auth
from headrace.exchange import Request

# Where clients put their key: OpenAI's, Anthropic's, Azure's.
KEY_FIELDS = ("authorization", "x-api-key", "api-key")


class Keys:
    """The keys that are known, hashed."""

    def __init__(self, config: Auth) -> None:
        entries = (entry.partition(":sha256:") for entry in config.keys)
        self._names = {digest: name for name, _, digest in entries}

    @property
    def are_required(self) -> bool:
        return bool(self._names)

    def name_of(self, request: Request) -> str | None:
        """The name of the request's key; `None` when it has none that is known."""
        key = presented(request)
        if not key:
            return None
        digest = hash_key(key)
        found = None
        for known, name in self._names.items():
            # All are compared, each in constant time: how long it takes tells nothing.
            if hmac.compare_digest(known, digest):
                found = name
        return found


def presented(request: Request) -> str | None:
    """The key that a request carries, if any."""
    for field in KEY_FIELDS:
        value = request.header(field)
        if value:
            scheme, _, rest = value.partition(" ")
            return rest.strip() if scheme.lower() == "bearer" else value.strip()
    return None


def hash_key(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def new_key(name: str) -> tuple[str, str]:
    """A new key, and the entry for `auth.keys`."""
    key = f"hr-{secrets.token_urlsafe(32)}"
    return key, f"{name}:sha256:{hash_key(key)}"
