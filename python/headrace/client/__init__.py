"""The client: HTTP/3 connections to a gateway, or to anybody's server."""

from headrace.client.client import Chunk, Connection, Response, Trust, connect

__all__ = ["Chunk", "Connection", "Response", "Trust", "connect"]
