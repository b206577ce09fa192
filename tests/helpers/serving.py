"""Servers in the process of the test: their configuration, where they are, and a client over TCP."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx2

from headrace import Config, Server
from headrace.gateway import Gateway
from headrace_lab.model import Source


def config(*sources: Source, **sections: Any) -> Config:
    """A configuration before these scripted models, on a free port."""
    upstreams = [{"url": source.url, "models": list(source.models)} for source in sources]
    return Config(**{"upstreams": upstreams, **sections, "listen": {"port": 0, **sections.get("listen", {})}})


def port_of(server: Gateway | Server) -> int:
    return (server.server if isinstance(server, Gateway) else server).address[1]


def origin(server: Gateway | Server) -> str:
    return f"https://localhost:{port_of(server)}"


def httpx_client(ca_file: Path, http2: bool) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(verify=ssl.create_default_context(cafile=ca_file), http1=not http2, http2=http2)
