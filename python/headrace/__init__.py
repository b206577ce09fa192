"""headrace: LLM token streams over HTTP/3.

A gateway before model servers, a server for handlers of your own, and a client, with a small Rust engine
under them.
"""

from headrace._engine import build_info
from headrace.client import AsyncClient, Client, ReplaySafe, Timeouts, Trust
from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.exchange import Exchange, Handler, RelayReport, RelayRequest, Request, Target
from headrace.server import Server

__version__ = dict(build_info())["version"]

__all__ = [
    "AsyncClient",
    "Client",
    "Config",
    "Exchange",
    "Handler",
    "HeadraceError",
    "RelayReport",
    "RelayRequest",
    "ReplaySafe",
    "Request",
    "Server",
    "Target",
    "Timeouts",
    "Trust",
    "__version__",
]
