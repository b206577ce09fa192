"""Chooses the client that speaks a protocol."""

from __future__ import annotations

from headrace.errors import ConfigError
from headrace_lab.clients.client import Client, Destination

PROTOCOLS = ("http1", "http2", "http3")
CLIENTS = ("headrace", "aioquic", "qh3")
"""The clients for HTTP/3. Over TCP there is one for each protocol."""
TITLES = {"http1": "HTTP/1.1", "http2": "HTTP/2", "http3": "HTTP/3"}


def make_client(protocol: str, client: str, destination: Destination) -> Client:
    """Makes a connection, which has not begun yet. Raises `ConfigError` when its library is missing."""
    try:
        if protocol == "http1":
            from headrace_lab.clients.http1 import Http1Client

            return Http1Client(destination)
        if protocol == "http2":
            from headrace_lab.clients.http2 import Http2Client

            return Http2Client(destination)
        if client == "headrace":
            from headrace_lab.clients.ours import OurClient

            return OurClient(destination)
        __import__(client)
    except ImportError as error:
        raise ConfigError(
            detail=f"{error.name} is not installed, which {protocol} by {client} needs: "
            "pip install 'headrace-lab[peers]'"
        ) from None
    from headrace_lab.clients.foreign import ForeignClient

    return ForeignClient(destination, client)
