"""Who may ask, and who it is that asks.

In: a request's head. Out: the name of its key, or a refusal; and a digest by which two callers are told
apart, whether the gateway knows their keys or not. Where each API has its key is in the table of dialects
(`headrace.events.dialects`). Keys are random and long, so their plain SHA-256 can be kept; the keys
themselves are nowhere.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from urllib.parse import unquote_plus

from headrace.config import Auth
from headrace.events import dialects
from headrace.exchange import Request

# Names by which a field or query parameter may say who asks, in whatever API. One too many keeps apart what
# could have been shared; one too few tells somebody another's answer.
WHO = re.compile(
    "account|auth|cookie|credential|key|organi[sz]ation|password|project|secret|session|sig|tenant|token|user"
)
SAYS_NOTHING = {"idempotency-key", "user-agent"}

MOST_KEYS = 8
"""Of one request that are looked at: each is compared with every key that is known."""


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
        found = None
        for key in presented(request)[:MOST_KEYS]:
            digest = hash_key(key)
            for known, name in self._names.items():
                # All are compared, each in constant time: how long it takes tells nothing.
                if hmac.compare_digest(known, digest):
                    found = found or name
        return found


def presented(request: Request) -> list[str]:
    """The keys that a request carries, in any field of any API, and in the query of its own."""
    headers = request.headers
    fields = [value for field in dialects.key_fields() for name, value in headers if name == field]
    return [_bare(value) for value in fields + _query_keys(request.target)]


def _bare(value: str) -> str:
    scheme, _, rest = value.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else value.strip()


def _query_keys(target: str) -> list[str]:
    names = dialects.of(target).key_queries
    return [value for name, value, _ in _parameters(target) if name in names]


def without_keys(target: str) -> str:
    """A target without the query parameters in which its API takes a key."""
    names = dialects.of(target).key_queries
    parameters = _parameters(target)
    kept = [raw for name, _, raw in parameters if name not in names]
    if len(kept) == len(parameters):
        return target
    path = target.partition("?")[0]
    return f"{path}?{'&'.join(kept)}" if kept else path


def _parameters(target: str) -> list[tuple[str, str, str]]:
    """The query parameters of a target: name in lower case, value, and both as they came."""
    query = target.partition("?")[2]
    split = [(raw, *raw.partition("=")[::2]) for raw in query.split("&") if raw]
    return [(unquote_plus(name).lower(), unquote_plus(value), raw) for raw, name, value in split]


def identity(request: Request) -> str:
    """A digest of all by which a request may say who asks; equal for the same caller alone."""
    fields = [(name, value) for name, value in request.headers if _says_who(name)]
    queries = [(name, value) for name, value, _ in _parameters(request.target) if _says_who(name)]
    said = json.dumps([sorted(fields), sorted(queries)])
    return hashlib.sha256(said.encode()).hexdigest()


def _says_who(name: str) -> bool:
    return name in dialects.key_fields() or (bool(WHO.search(name)) and name not in SAYS_NOTHING)


def hash_key(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def new_key(name: str) -> tuple[str, str]:
    """A new key, and the entry for `auth.keys`."""
    key = f"hr-{secrets.token_urlsafe(32)}"
    return key, f"{name}:sha256:{hash_key(key)}"
