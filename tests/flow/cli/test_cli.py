"""The command line, as processes: what it prints, how it ends, what it says when something is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import urllib.request
from pathlib import Path

import pytest

from headrace_lab.model import Source
from tests.helpers.command_line import HEADRACE, Screen, Serving, run


def test_help_teaches(home: dict[str, str], tmp_path: Path) -> None:
    text = run("--help", env=home, cwd=tmp_path).stdout
    for command in ("serve", "chat", "demo", "model", "key"):
        assert command in text
    text = run("serve", "--help", env=home, cwd=tmp_path).stdout
    assert "--upstream" in text
    assert "headrace config" in text
    assert re.match(
        r"headrace \d+\.\d+\.\d+ \(release|debug\)", run("--version", env=home, cwd=tmp_path).stdout
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_cleanly_by_a_signal(number: int, serving: Serving) -> None:
    status, log = serving.end(number)
    assert status == 0
    assert log[-1]["message"] == "closed; no answer was cut"


def test_serve_ends_by_a_signal_while_it_waits_for_its_upstreams(
    home: dict[str, str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        serving = Serving(["--upstream", url], home, tmp_path, wait_until_ready=False)
        with silent.accept()[0] as asked:
            assert asked.recv(4096).startswith(b"GET /v1/models ")
            status, log = serving.end()
    assert (status, log[-1]["message"]) == (0, "stopped before it was ready")
    assert not any(entry.get("event") == "ready" for entry in log)


def test_sighup_reads_the_configuration_again(source_url: str, home: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    upstream = f'[[upstreams]]\nurl = "{source_url}"\nmodels = ["{{}}"]\n'
    file.write_text(upstream.format("before"))
    serving = Serving([], home, tmp_path)
    try:
        file.write_text("[limits]\nmax_head = 4096\n")
        serving.process.send_signal(signal.SIGHUP)
        assert "limits.max_head" in str(serving.wait_for("message", "nothing was changed"))
        file.write_text(upstream.format("after") + "[limits]\nmax_head_bytes = 4096\n")
        serving.process.send_signal(signal.SIGHUP)
        assert "limits" in str(serving.wait_for("message", "from the next start on"))
        assert serving.wait_for("event", "ready")["models"] == ["after"]
        file.write_text(file.read_text() + '[log]\nlevel = "warning"\n')
        serving.process.send_signal(signal.SIGHUP)
        assert serving.wait_for("message", "from the next start on")["level"] == "warning"
    finally:
        _, rest = serving.end()
    assert rest == []


def test_sighup_changes_the_form_of_the_log(source_url: str, home: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    upstream = f'[[upstreams]]\nurl = "{source_url}"\nmodels = ["a"]\n'
    file.write_text(upstream + '[log]\nformat = "json"\n')
    serving = Serving([], home, tmp_path, log_format=())
    file.write_text(upstream + '[log]\nformat = "text"\n')
    serving.process.send_signal(signal.SIGHUP)
    assert serving.process.stderr is not None
    while serving.process.stderr.readline().startswith("{"):
        pass
    insecure = ssl.create_default_context()
    insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
    urllib.request.urlopen(f"{serving.url}/v1/models", context=insecure).close()
    serving.process.send_signal(signal.SIGTERM)
    _, rest = serving.process.communicate(timeout=20)
    assert re.search(r"^\d\d:\d\d:\d\d \S+ GET /v1/models HTTP/1.1 200 done ", rest, re.MULTILINE), rest


def test_chat_prints_tokens_to_its_output_and_figures_beside(
    serving: Serving, home: dict[str, str], tmp_path: Path
) -> None:
    result = run("chat", "hello", "--url", serving.url, env=home, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "".join(f" t{number}" for number in range(20)) + "\n"
    assert re.search(
        r"\[HTTP/3, 20 tokens, TTFT \d+\.\d ms, gaps p50 \d+\.\d ms, p99 \d+\.\d ms\]", result.stderr
    )
    piped = run("chat", "-q", "--url", serving.url, env=home, cwd=tmp_path, stdin="hello")
    assert (piped.stdout, piped.stderr) == (result.stdout, "")
    _, log = serving.end()
    asked = [entry for entry in log if entry.get("path") == "/v1/chat/completions"]
    assert [(entry["protocol"], entry["cause"], entry["events"]) for entry in asked] == [
        ("HTTP/3", "done", 21)
    ] * 2


def test_ctrl_c_stops_the_answer_and_not_the_conversation(
    source_url: str, home: dict[str, str], tmp_path: Path
) -> None:
    """In a terminal: SIGINT in mid-answer resets the stream; the next question is answered on."""
    import pty

    serving = Serving(["--upstream", source_url], home, tmp_path)
    try:
        master, slave = pty.openpty()
        chat = subprocess.Popen(
            [*HEADRACE, "chat", "--url", serving.url],
            env=home,
            cwd=tmp_path,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        screen = Screen(master)
        screen.wait_for("> ")
        os.write(master, b"one\n")
        screen.wait_for("t3")
        chat.send_signal(signal.SIGINT)
        screen.wait_for("[stopped]")
        screen.wait_for("> ")
        os.write(master, b"two\n")
        screen.wait_for("t19")
        screen.wait_for("> ")
        os.write(master, b"\x04")
        assert chat.wait(10) == 0
        os.close(master)
    finally:
        _, log = serving.end()
    causes = [entry["cause"] for entry in log if entry.get("path") == "/v1/chat/completions"]
    assert causes == ["stopped", "done"]


def test_chat_says_when_nobody_is_there(home: dict[str, str], tmp_path: Path) -> None:
    import socket

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    result = run("chat", "hi", "--url", f"https://127.0.0.1:{port}", env=home, cwd=tmp_path)
    assert result.returncode == 1
    assert f"nothing listens at https://127.0.0.1:{port}; start it with `headrace serve`" in result.stderr
    assert "Traceback" not in result.stderr


def test_chat_says_which_models_there_are(source_url: str, home: dict[str, str], tmp_path: Path) -> None:
    """Models that stand in the configuration are a wall, even for one upstream alone."""
    file = tmp_path / "gateway.toml"
    file.write_text(f'[[upstreams]]\nurl = "{source_url}"\nmodels = ["scripted"]\n')
    serving = Serving(["--config", str(file)], home, tmp_path)
    result = run("chat", "hi", "--url", serving.url, "--model", "gpt-9", env=home, cwd=tmp_path)
    serving.end()
    assert result.returncode == 1
    assert "no upstream serves the model 'gpt-9'; there are: scripted" in result.stderr


WRONG = [
    (["--port", "99999"], "flag: listen.port: expected less than or equal to 65535, got 99999"),
    (
        ["--upstream", "nonsense"],
        "flag: upstreams.0: url: expected http://host:port or https://host, got 'nonsense'",
    ),
    (["--config", "none.toml"], "none.toml: cannot be read: No such file or directory"),
    (
        ["--certificate", "c.pem", "--key", "k.pem"],
        "tls.certificate: cannot read c.pem: No such file or directory",
    ),
    (["--certificate", "c.pem"], "flag: tls: certificate is set and key is not; set both, or neither"),
    (["--model", "none.gguf"], "local.model: cannot read none.gguf: No such file or directory"),
    (["--host", "203.0.113.7"], "listen.host is not an address of this machine"),
    (["--log-format", "xml"], "flag: log.format: expected 'text' or 'json', got 'xml'"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_what_is_wrong_is_one_sentence_and_status_two(
    arguments: list[str], message: str, home: dict[str, str], tmp_path: Path
) -> None:
    upstream = (
        [] if "--model" in arguments or "--upstream" in arguments else ["--upstream", "http://127.0.0.1:9"]
    )
    result = run("serve", *upstream, *arguments, env=home, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_bad_certificate_file_and_a_bad_model_file_are_told(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nonsense")
    bad = ["--certificate", "bad.pem", "--key", "bad.pem", "--upstream", "http://127.0.0.1:9"]
    result = run("serve", *bad, env=home, cwd=tmp_path)
    assert (result.returncode, "tls.certificate: bad.pem: holds no certificate" in result.stderr) == (2, True)
    result = run("serve", "--model", "bad.pem", env=home, cwd=tmp_path)
    assert (result.returncode, "expected a GGUF file, and bad.pem is not one" in result.stderr) == (2, True)


def test_a_dead_upstream_is_told_at_start_and_does_not_keep_it_from_starting(
    home: dict[str, str], tmp_path: Path
) -> None:
    serving = Serving(["--upstream", "http://127.0.0.1:9"], home, tmp_path)
    status, _ = serving.end()
    assert status == 0
    said = [str(entry.get("message")) for entry in serving.lines]
    assert any(
        line.startswith("upstream 127.0.0.1:9 is unhealthy: the upstream could not be reached")
        for line in said
    )


def test_the_development_certificate_is_made_once_and_kept_private(
    home: dict[str, str], tmp_path: Path
) -> None:
    for expected in ("development certificate made", "development certificate:"):
        serving = Serving(["--upstream", "http://127.0.0.1:9"], home, tmp_path)
        serving.end()
        assert any(str(entry.get("message", "")).startswith(expected) for entry in serving.lines)
    state = tmp_path / "state" / "headrace"
    assert (state / "key.pem").stat().st_mode & 0o777 == 0o600


def test_a_key_is_made_and_lets_in(source_url: str, home: dict[str, str], tmp_path: Path) -> None:
    made = run("key", "new", "alice", env=home, cwd=tmp_path).stdout
    key = re.search(r"hr-[\w-]+", made)
    entry = re.search(r'keys = \["(alice:sha256:[0-9a-f]{64})"\]', made)
    assert key
    assert entry
    (tmp_path / "headrace.toml").write_text(f'[auth]\nkeys = ["{entry[1]}"]\n')
    serving = Serving(["--upstream", source_url], home, tmp_path)
    try:
        refused = run("chat", "hi", "--url", serving.url, env=home, cwd=tmp_path)
        assert "the API key is missing or unknown" in refused.stderr
        let_in = run("chat", "hi", "--url", serving.url, "--api-key", key[0], env=home, cwd=tmp_path)
        assert let_in.returncode == 0, let_in.stderr
    finally:
        _, log = serving.end()
    assert [entry.get("key") for entry in log if entry.get("path") == "/v1/chat/completions"] == ["alice"]
    assert key[0] not in json.dumps(log)


async def test_the_scripted_model_says_that_it_is_one(source: Source) -> None:
    def ask() -> str:
        request = urllib.request.Request(
            f"{source.url}/v1/x", data=b'{"script": {"events": 1, "interval_s": 0}}'
        )
        with urllib.request.urlopen(request) as answer:
            return str(answer.headers["server"])

    import asyncio

    assert await asyncio.to_thread(ask) == "headrace scripted model"
