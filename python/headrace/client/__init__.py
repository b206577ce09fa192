"""The client: HTTP/3 to a gateway, or to anybody's server."""

from headrace.client.client import AsyncClient, Client, SyncResponse
from headrace.client.connection import Chunk, Connection, Response, connect
from headrace.client.replay import ReplaySafe
from headrace.client.timeouts import Timeouts
from headrace.client.trust import Trust

__all__ = [
    "AsyncClient",
    "Chunk",
    "Client",
    "Connection",
    "ReplaySafe",
    "Response",
    "SyncResponse",
    "Timeouts",
    "Trust",
    "connect",
]
