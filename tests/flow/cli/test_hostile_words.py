"""What servers and files say, shown by the command line: it commands no terminal, and tells no secret."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import urllib.request
from pathlib import Path

import pytest

from headrace import Client, Trust, dev_certificate
from headrace.errors import ConfigError
from tests.helpers.command_line import HEADRACE, Screen, Serving, run

NOBODY = ("--upstream", "http://127.0.0.1:9")


def test_a_log_that_nobody_reads_stops_no_request(
    source_url: str, home: dict[str, str], tmp_path: Path
) -> None:
    """Twenty times what a pipe holds; then the log is read, and says what was dropped."""
    file = tmp_path / "headrace.toml"
    file.write_text("[log]\nmax_waiting_bytes = 65536\n")
    serving = Serving(["--upstream", source_url], home, tmp_path)
    insecure = ssl.create_default_context()
    insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
    url = f"{serving.url}/{'x' * 2000}"
    for _ in range(1500):
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(url, context=insecure, timeout=20)
    status, lines = serving.end()
    assert status == 0
    assert any("lines were dropped" in str(line.get("message")) for line in lines)
    assert len(lines) < 1500


def test_a_process_ends_although_nobody_reads_its_log(
    source_url: str, home: dict[str, str], tmp_path: Path
) -> None:
    read, write = os.pipe()
    serving = subprocess.Popen(
        [*HEADRACE, "serve", "--port", "0", "--upstream", source_url], env=home, cwd=tmp_path, stderr=write
    )
    try:
        while b"is ready" not in os.read(read, 4096):
            pass
        os.set_blocking(write, False)
        while True:
            try:
                os.write(write, b"x" * 4096)
            except BlockingIOError:
                break
        os.set_blocking(write, True)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(20) == 0
    finally:
        serving.kill()
        os.close(read)
        os.close(write)


def bad_files(folder: Path) -> dict[str, tuple[str, str, str]]:
    """By what is wrong: certificate, key, and what is said."""
    made, other = dev_certificate.make(["localhost"]), dev_certificate.make(["localhost"])
    texts = {
        "good.pem": made.chain_pem,
        "good.key": made.key_pem,
        "other.key": other.key_pem,
        "empty.pem": "",
        "text.pem": "nonsense",
        "broken.pem": "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n",
        "junk.pem": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "binary.pem").write_bytes(b"\xff\xfe\0")
    (folder / "folder.pem").mkdir()
    return {
        "no file": ("none.pem", "good.key", "tls.certificate: cannot read none.pem: No such file"),
        "a folder": ("folder.pem", "good.key", "tls.certificate: cannot read folder.pem: Is a directory"),
        "not text": (
            "binary.pem",
            "good.key",
            "tls.certificate: expected a PEM file, and binary.pem is not text",
        ),
        "empty": ("empty.pem", "good.key", "tls.certificate: empty.pem: holds no certificate"),
        "not PEM": ("text.pem", "good.key", "tls.certificate: text.pem: holds no certificate"),
        "broken PEM": ("broken.pem", "good.key", "tls.certificate: broken.pem: is not PEM"),
        "no certificate inside": ("junk.pem", "good.key", "tls.certificate: junk.pem: cannot be used"),
        "a certificate as the key": ("good.pem", "good.pem", "tls.key: good.pem: holds no private key"),
        "an empty key": ("good.pem", "empty.pem", "tls.key: empty.pem: holds no private key"),
        "a key of another": ("good.pem", "other.key", "tls.key: other.key: does not belong"),
    }


def test_a_bad_tls_file_is_named_with_its_setting(home: dict[str, str], tmp_path: Path) -> None:
    for what, (certificate, key, message) in bad_files(tmp_path).items():
        files = ["--certificate", certificate, "--key", key]
        result = run("serve", "--port", "0", *NOBODY, *files, env=home, cwd=tmp_path)
        assert (result.returncode, message in result.stderr) == (2, True), (what, result.stderr)
        assert "Traceback" not in result.stderr


def test_a_bad_ca_file_is_named_with_its_setting(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nonsense")
    (tmp_path / "headrace.toml").write_text('[pool]\nca_file = "ca.pem"\n')
    result = run("serve", "--port", "0", *NOBODY, env=home, cwd=tmp_path)
    assert (result.returncode, result.stderr.splitlines()[-1]) == (
        2,
        "headrace: pool.ca_file: ca.pem: holds no certificate; expected PEM",
    )
    for trust, named in [
        (Trust(ca_file=tmp_path / "ca.pem"), "ca_file"),
        (Trust(identity=(tmp_path / "ca.pem", tmp_path / "ca.pem")), "identity.certificate"),
    ]:
        with pytest.raises(ConfigError, match=f"{named}: .*ca.pem: holds no certificate; expected PEM"):
            Client(trust=trust)


SECRETS = {
    "a key among the keys": '[auth]\nkeys = "hr-secret"\n',
    "a key that is not hashed": '[auth]\nkeys = ["hr-secret"]\n',
    "a number that is a key": "[auth]\nkeys = [1234567890]\n",
    "a password in a URL": '[[upstreams]]\nurl = "htp://user:hr-secret@host"\n',
    "a user in a URL": '[[upstreams]]\nurl = "http://user:hr-secret@host"\n',
    "a key with a blank": '[[upstreams]]\nurl = "http://host"\napi_key_env = "MODEL_KEY"\n',
}


@pytest.mark.parametrize("text", SECRETS.values(), ids=SECRETS.keys())
def test_no_secret_of_the_configuration_is_shown(text: str, home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text(text)
    secret = {**home, "MODEL_KEY": "hr-secret with a blank"}
    result = run("serve", "--port", "0", env=secret, cwd=tmp_path)
    assert result.returncode == 2
    assert "hr-secret" not in result.stderr
    assert "1234567890" not in result.stderr


def test_a_models_answer_does_not_command_the_terminal(
    home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says reaches a terminal as escapes, and a pipe as it is."""
    import pty
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    said = "one\n\x1b]0;owned\x07\x1b[2J\x9b31mtwo"

    class Model(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer("application/json", json.dumps({"data": [{"id": "m"}]}))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            event = json.dumps({"choices": [{"delta": {"content": said}}]})
            self.answer("text/event-stream", f"data: {event}\n\ndata: [DONE]\n\n")

        def answer(self, kind: str, text: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        serving = Serving(["--upstream", f"http://127.0.0.1:{server.server_port}"], home, tmp_path)
        piped = run("chat", "-q", "x", "--url", serving.url, env=home, cwd=tmp_path)
        master, slave = pty.openpty()
        command = [*HEADRACE, "chat", "-q", "x", "--url", serving.url]
        terminal = {"stdin": slave, "stdout": slave, "stderr": slave}
        with subprocess.Popen(command, env=home, cwd=tmp_path, **terminal) as chat:
            os.close(slave)
            screen = Screen(master)
            screen.wait_for("two")
            assert chat.wait(20) == 0
        os.close(master)
        serving.end()
        server.shutdown()
    assert piped.stdout == said + "\n"
    assert "\x1b" not in screen.seen
    assert "\\x1b[2J" in screen.seen
