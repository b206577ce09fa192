"""The servers of `headrace_lab.peers.servers` as the benchmarks use them: on a free port, and on loopback
where no `host` is given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace_lab.peers import servers as peers
from headrace_lab.peers.servers import Plan, Proxy, Site, certificate
from headrace_lab.process import free_port, private_memory, process

__all__ = [
    "PROXIES",
    "Proxy",
    "caddy",
    "certificate",
    "envoy",
    "free_port",
    "headrace",
    "private_memory",
    "process",
]

LOCAL = "127.0.0.1"


@contextlib.contextmanager
def _run(
    make: Callable[[Site], Plan], upstream: str, folder: Path, workers: int, host: str, options: str = ""
) -> Iterator[Proxy]:
    site = Site(upstream, folder, host, free_port(), workers, options)
    with peers.started(make(site), site) as proxy:
        yield proxy


@contextlib.contextmanager
def headrace(
    upstream: str, folder: Path, workers: int, log: str = "", max_streams: int = 1000, host: str = LOCAL
) -> Iterator[Proxy]:
    """`log`: format of an access log; without it none is written, as for the others. `max_streams`: of one
    connection."""
    logging = f'access = true\nformat = "{log}"' if log else "access = false"
    limits = f"max_streams_per_connection = {max_streams}\nmax_connections = 4000"
    options = f"[limits]\n{limits}\n[log]\n{logging}\n"
    with _run(peers.headrace, upstream, folder, workers, host, options) as proxy:
        yield proxy


@contextlib.contextmanager
def caddy(upstream: str, folder: Path, workers: int, tls: str = "", host: str = LOCAL) -> Iterator[Proxy]:
    """`tls`: more for its `tls` block."""
    with _run(peers.caddy, upstream, folder, workers, host, tls) as proxy:
        yield proxy


@contextlib.contextmanager
def envoy(upstream: str, folder: Path, workers: int, host: str = LOCAL) -> Iterator[Proxy]:
    with _run(peers.envoy, upstream, folder, workers, host) as proxy:
        yield proxy


PROXIES: dict[str, Callable[[str, Path, int], contextlib.AbstractContextManager[Proxy]]] = {
    "headrace": headrace,
    "caddy": caddy,
    "envoy": envoy,
}
