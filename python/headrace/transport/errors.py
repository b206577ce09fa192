"""headrace's errors as those of httpx and httpx2.

In: what our client raises. Out: the family's exception for its kind, by one table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from headrace import errors

EXCEPTIONS = {
    "connect": "ConnectError",
    "tls": "ConnectError",
    "connect_timeout": "ConnectTimeout",
    "pool_timeout": "PoolTimeout",
    "write_timeout": "WriteTimeout",
    "read_timeout": "ReadTimeout",
    "connection_lost": "ReadError",
    "write_lost": "WriteError",
    "stopped": "ReadError",
    "stream_reset": "RemoteProtocolError",
    "protocol": "RemoteProtocolError",
    "truncated": "RemoteProtocolError",
    "refused": "RemoteProtocolError",
    "bad_request": "LocalProtocolError",
    "body_incomplete": "LocalProtocolError",
}
"""The family's exception for each kind. A kind that is not here is a mistake of the program, and is raised as
it is."""


@contextlib.contextmanager
def translated(family: Any) -> Iterator[None]:
    """Raises the engine's errors as those of the family."""
    try:
        yield
    except errors.HeadraceError as error:
        name = EXCEPTIONS.get(error.kind.slug)
        if name is None:
            raise
        raise getattr(family, name)(str(error)) from error
