"""The client: HTTP/3 connections to a gateway, or to anybody's server."""

from headrace.client.connection import Chunk, Connection, Response, connect
from headrace.client.trust import Trust

__all__ = ["Chunk", "Connection", "Response", "Trust", "connect"]
