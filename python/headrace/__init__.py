"""headrace: LLM token streams over HTTP/3.

A gateway before model servers, a server for handlers of your own, and a client, with a small Rust engine
under them. What stands here is imported when it is first used: a client does not load the server's
configuration. `Config` and `Server` need the extra `serve`: `pip install 'headrace[serve]'`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client import AsyncClient, Client, ReplaySafe, Timeouts, Trust
    from headrace.config import Config
    from headrace.errors import HeadraceError
    from headrace.exchange import Exchange, Handler, RelayReport, RelayRequest, Request, Target
    from headrace.server import Server

    __version__: str

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

_MODULES = {
    "AsyncClient": "client",
    "Client": "client",
    "Config": "config",
    "Exchange": "exchange",
    "Handler": "exchange",
    "HeadraceError": "errors",
    "RelayReport": "exchange",
    "RelayRequest": "exchange",
    "ReplaySafe": "client",
    "Request": "exchange",
    "Server": "server",
    "Target": "exchange",
    "Timeouts": "client",
    "Trust": "client",
}


def __getattr__(name: str) -> Any:
    """Imports the module that a name lives in (PEP 562)."""
    from importlib import import_module

    if name == "__version__":
        value = dict(import_module("headrace._engine").build_info())["version"]
    elif name in _MODULES:
        value = getattr(import_module(f"headrace.{_MODULES[name]}"), name)
    else:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
