"""The lab over loopback: every client measures, faulty proxies are found out, nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.gateway import Gateway
from headrace_lab import process
from headrace_lab.cli import run
from headrace_lab.clients.workload import Workload, perform
from headrace_lab.measure.measures import Observed, measure
from headrace_lab.measure.verdict import verdict
from headrace_lab.model import Source
from headrace_lab.peers import controls, servers
from tests.helpers.serving import origin

SCRIPT = {"events": 25, "interval_s": 0.02, "note_due": True, "note_times": True}


async def observe(url: str, source: Source, **fields: object) -> Observed:
    log = await perform(Workload(**{"url": url, "script": SCRIPT, "limit_s": 30.0, **fields}))  # type: ignore[arg-type]
    return Observed(json.loads(json.dumps(log)), source.record())


@pytest.mark.parametrize(
    ("protocol", "client"),
    [
        ("http1", "headrace"),
        ("http2", "headrace"),
        ("http3", "headrace"),
        ("http3", "aioquic"),
        ("http3", "qh3"),
    ],
)
async def test_every_client_sees_every_token(
    protocol: str, client: str, source: Source, gateway: Gateway, ca_file: Path
) -> None:
    """Over each protocol, by ours and by foreign clients; in order, once, with the moment it was due."""
    seen = await observe(
        origin(gateway), source, protocol=protocol, client=client, ca=str(ca_file), connections=2, streams=3
    )
    streams = seen.log["streams"]
    assert [stream["error"] for stream in streams] == [""] * 6
    for stream in streams:
        assert [token[0] for token in stream["tokens"]] == list(range(25))
        assert all(due <= at for _, due, _, at in stream["tokens"])
        assert stream["status"] == 200
        assert stream["done"]
    found = measure(seen)
    assert found["tokens_lost"] == 0
    assert found["late_p50_ms"] > 0


@pytest.mark.parametrize(
    ("protocol", "client"),
    [("http1", "headrace"), ("http2", "headrace"), ("http3", "headrace"), ("http3", "aioquic")],
)
async def test_a_stop_is_seen_by_the_model(
    protocol: str, client: str, source: Source, gateway: Gateway, ca_file: Path
) -> None:
    """Each stopped answer, over each protocol; the others arrive whole."""
    seen = await observe(
        origin(gateway),
        source,
        protocol=protocol,
        client=client,
        ca=str(ca_file),
        streams=4,
        rounds=2,
        stop_places=2,
    )
    await asyncio.sleep(0.2)
    seen.record = source.record()
    found = measure(seen)
    assert found["stops_unseen"] == 0
    assert found["stop_p50_ms"] >= 0
    assert found["tokens_lost"] == 0


async def test_a_slow_reader_does_not_cut_the_others(source: Source, gateway: Gateway, ca_file: Path) -> None:
    slow = {"events": 20_000, "interval_s": 0, "framing": "raw", "size": 1000}
    seen = await observe(
        origin(gateway),
        source,
        ca=str(ca_file),
        streams=3,
        slow_places=1,
        slow_script=slow,
        slow_for_s=0.5,
        slow_at_s=0,
    )
    assert measure(seen)["tokens_lost"] == 0
    assert max(run.paused for run in source.runs) > 0


@pytest.mark.parametrize(
    ("protocol", "client"), [("http1", "headrace"), ("http2", "headrace"), ("http3", "qh3")]
)
async def test_a_client_takes_more_than_a_window(
    protocol: str, client: str, source: Source, gateway: Gateway, ca_file: Path
) -> None:
    """Three megabytes on one stream: credit is given back as the body is read."""
    script = {"events": 1500, "interval_s": 0, "size": 2000}
    seen = await observe(
        origin(gateway), source, protocol=protocol, client=client, ca=str(ca_file), script=script
    )
    assert seen.log["streams"][0]["error"] == ""
    assert measure(seen)["tokens_lost"] == 0


@pytest.mark.parametrize("name", ["headrace", "caddy", "envoy", "hypercorn"])
async def test_every_peer_speaks_every_protocol(name: str, source: Source, tmp_path: Path) -> None:
    """On one port; every token arrives over each."""
    servers.certificate(tmp_path)
    site = servers.Site(source.url, tmp_path, port=process.free_port())
    plan = servers.SERVERS[name](site)
    assert plan.protocols == ("http1", "http2", "http3")
    with servers.started(plan, site) as proxy:
        for protocol in plan.protocols:
            seen = await observe(
                proxy.origin, source, protocol=protocol, ca=str(tmp_path / "ca.pem"), streams=2
            )
            assert measure(seen)["tokens_lost"] == 0, protocol
            assert verdict(seen) == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("plain", None),
        ("buffer", "buffers"),
        ("coalesce", "coalesces"),
        ("gzip", "compresses"),
        ("clean-end", "hides a failure"),
    ],
)
async def test_a_faulty_proxy_is_found_out(kind: str, words: str | None, source: Source) -> None:
    """Each fault is named; the same proxy without one is not suspected."""
    server = await controls.serve(kind, source.url)
    port = server.sockets[0].getsockname()[1]
    script = SCRIPT | ({"end": "die"} if kind == "clean-end" else {})
    async with server:
        log = await perform(Workload(f"http://127.0.0.1:{port}", protocol="http1", streams=2, script=script))
    said = verdict(Observed(log, source.record()))
    assert [sentence.split(":")[0] for sentence in said] == ([words] if words else [])


async def test_a_death_that_is_told_is_no_fault(source: Source, gateway: Gateway, ca_file: Path) -> None:
    """The gateway's own way to end an answer whose model died."""
    seen = await observe(origin(gateway), source, ca=str(ca_file), script=SCRIPT | {"end": "die"})
    assert verdict(seen) == []
    assert seen.log["streams"][0]["error"]


@pytest.mark.parametrize(
    ("head", "status"), [(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked", 411), (b"nonsense", 400)]
)
async def test_the_scripted_model_refuses_what_it_cannot_read(
    head: bytes, status: int, source: Source
) -> None:
    """A proxy that sends a chunked request, or a line that is none, gets an answer."""
    address = source.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(address[0], int(address[1]))
    writer.write(head + b"\r\n\r\n")
    answer = await asyncio.wait_for(reader.readline(), 10)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    writer.close()


async def test_a_dead_server_says_what_it_said(source: Source, tmp_path: Path) -> None:
    """A server that does not come up is an error with its own words."""
    site = servers.Site(source.url, tmp_path, port=process.free_port())
    with (
        pytest.raises(ConfigError, match=r"it ended at once; its log:\n(.|\n)*cert.pem"),
        servers.started(servers.headrace(site), site),
    ):
        pass


SCENARIO = """
title = "A small one"
[load]
streams = 2
tokens = 10
[run]
servers = ["control-plain"]
protocols = ["http1"]
seeds = 2
baseline = "control-plain/http1"
[show]
measures = ["stalls_per_1000", "ttft_p50_ms", "cut_streams"]
"""


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/net/tun"), reason="a link needs root and /dev/net/tun"
)


def lab(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace", "lab", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=cwd, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def children(pid: int) -> dict[int, str]:
    """The processes that a process has started, and their commands."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"\nPPid:\t{pid}\n" in (folder / "status").read_text():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def test_a_scenario_from_the_command_line_to_the_page(tmp_path: Path) -> None:
    """Run, report, compare: each does its part with what the one before wrote."""
    (tmp_path / "small.toml").write_text(SCENARIO)
    running = lab("run", "./small.toml", "--on", "loopback", "--out", "r", cwd=tmp_path)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said
    result = json.loads((tmp_path / "r" / "small.json").read_text())
    assert [(cell["seed"], cell["again"]) for cell in result["cells"]] == [
        (1, False),
        (1, True),
        (2, True),
        (2, False),
    ]
    assert result["about"]["machine"]["cores"]
    assert all(cell["measures"]["tokens_lost"] == 0 for cell in result["cells"])
    running = lab("report", "r", cwd=tmp_path)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said
    page = (tmp_path / "r" / "report.html").read_text()
    assert "A small one" in page
    assert "src=" not in page
    assert "href=" not in page.replace('href="#', "")
    running = lab("compare", "r/small.json", "r/small.json", cwd=tmp_path)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said
    assert "| none |" in said


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a cell; a second run right after works."""
    (tmp_path / "long.toml").write_text(SCENARIO.replace("tokens = 10", "tokens = 3000"))
    running = lab("run", "./long.toml", "--on", "loopback", cwd=tmp_path)
    for _ in range(1000):
        started = children(running.pid)
        if any("headrace_lab.clients.workload" in command for command in started.values()):
            break
        assert running.poll() is None
        signal.sigtimedwait([], 0.02)
    assert len(started) == 3
    os.kill(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=30)
    assert running.returncode == 130, said
    assert "everything that was started has ended" in said
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    (tmp_path / "small.toml").write_text(SCENARIO)
    again = lab("run", "./small.toml", "--on", "loopback", cwd=tmp_path)
    said, _ = again.communicate(timeout=60)
    assert again.returncode == 0, said


@needs_root
def test_a_scenario_over_the_link_leaves_no_namespace(tmp_path: Path) -> None:
    """Packets are counted and the named one is lost, also in a run that is void because the machine was busy;
    what happened to the link is told; ended or interrupted, it is gone."""
    text = SCENARIO.replace("tokens = 10", "tokens = 30").replace("seeds = 2", "seeds = 1")
    text = text.replace('baseline = "control-plain/http1"', "")
    text += '[link]\ndelay_ms = 5\ndrops_down = [4]\n[[events]]\nat_s = 0.2\ndo = "loss"\nloss = 0.0\n'
    (tmp_path / "small.toml").write_text(text)
    running = lab("run", "./small.toml", "--out", "r", cwd=tmp_path)
    said, _ = running.communicate(timeout=100)
    (cell,) = json.loads((tmp_path / "r" / "small.json").read_text())["cells"]
    assert cell["rtt_ms"] == 10.0
    assert [event["do"] for event in cell["timeline"]["events"]] == ["loss"]
    assert not namespaces_of(running.pid)
    assert running.returncode == bool(cell["void"]), said
    # Void or not: what is counted does not depend on how fast the machine was. The fifth packet is lost
    # twice: of the warm-up, and of the run.
    down = cell["link"]["down"]
    assert (down["dropped"]["named"], sum(down["dropped"].values())) == (2, 2)
    assert down["in"] == down["out"] + 2
    assert [direction for _, direction in cell["timeline"]["lost"]] == ["down"]
    tokens = sum(len(stream["at"]) for stream in cell["timeline"]["streams"])
    assert tokens == 60
    assert cell["measures"]["tokens_lost"] == cell["measures"]["cut_streams"] == 0
    assert 1 <= cell["measures"]["packets_per_token"] <= down["in"] / tokens
    on_their_way = [
        at - due
        for stream in cell["timeline"]["streams"]
        for due, at in zip(stream["due"], stream["at"], strict=True)
    ]
    assert min(on_their_way) >= 5
    (tmp_path / "long.toml").write_text(text.replace("tokens = 30", "tokens = 3000"))
    running = lab("run", "./long.toml", cwd=tmp_path)
    for _ in range(1000):
        if namespaces_of(running.pid):
            break
        assert running.poll() is None
        signal.sigtimedwait([], 0.02)
    os.kill(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=30)
    assert running.returncode == 130, said
    assert not namespaces_of(running.pid)


def namespaces_of(pid: int) -> list[str]:
    return [path.name for path in Path("/run/netns").glob(f"headrace-{pid}-*")]


def test_without_root_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        ConfigError, match=r"run it with sudo, or with --on relay \(HTTP/3 alone\) or --on loop"
    ):
        run(["fan-out"])
