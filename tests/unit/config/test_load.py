"""Every setting that is wrong is named: where it came from, which key, what was expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.config import Config, engine_json, load
from headrace.errors import ConfigError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str) -> Path:
    file = Path("headrace.toml")
    file.write_text(text)
    return file


def test_flags_win_over_the_environment_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    file = write('[listen]\nport = 1\nhost = "file"\nworkers = 3\n')
    monkeypatch.setenv("HEADRACE_LISTEN__PORT", "2")
    monkeypatch.setenv("HEADRACE_LISTEN__HOST", "environment")
    loaded = load(file, {"listen": {"port": 3}})
    assert (loaded.listen.port, loaded.listen.host, loaded.listen.workers) == (3, "environment", 3)


def test_a_file_in_the_working_directory_is_found() -> None:
    write("[listen]\nport = 7\n")
    assert load().listen.port == 7


def test_without_anything_there_are_defaults() -> None:
    loaded = load()
    assert loaded.listen.host == "127.0.0.1"
    assert loaded.limits.stream_budget_bytes == 32 * 1024
    assert loaded.listen.worker_count >= 1


WRONG = {
    "[listen]\nport = 70000": "headrace.toml: listen.port: expected less than or equal to 65535, got 70000",
    '[listen]\nport = "x"': "headrace.toml: listen.port: expected a valid integer, unable to parse string as an integer, got 'x'",
    "[listen]\nprot = 1": "headrace.toml: listen.prot: no such key; did you mean 'port'?",
    "[lisen]\nport = 1": "headrace.toml: lisen: no such key; did you mean 'listen'?",
    "[limits]\nmax_head_bytes = 1": "headrace.toml: limits.max_head_bytes: expected greater than or equal to 1024, got 1",
    "[[upstreams]]\nname = 'x'": "headrace.toml: upstreams.0.url: is missing",
    "[[upstreams]]\nurl = 'ftp://x'": "headrace.toml: upstreams.0: url: expected http://host:port or https://host, got 'ftp://x'",
    "[[upstreams]]\nurl = 'http://x:99999'": "headrace.toml: upstreams.0: url: Port out of range 0-65535",
    "[[upstreams]]\nurl = 'http://x'\nmodel = 'y'": "headrace.toml: upstreams.0.model: no such key; did you mean 'models'?",
    "[[upstreams]]\nurl = 'http://x'\napi_key_env = 'NOT_SET'": (
        "headrace.toml: upstreams.0: api_key_env: the environment variable NOT_SET is not set"
    ),
    "[[upstreams]]\nurl = 'http://x'\n[[upstreams]]\nurl = 'http://x'": (
        "headrace.toml: upstreams: two have the name 'x'; give each a name of its own"
    ),
    "[tls]\ncertificate = 'a.pem'": "headrace.toml: tls: certificate is set and key is not; set both, or neither",
    "[auth]\nkeys = ['plain']": (
        "headrace.toml: auth: keys: expected name:sha256:<64 hex digits>, as `headrace key new` prints it"
    ),
    "[log]\nformat = 'xml'": "headrace.toml: log.format: expected 'text' or 'json', got 'xml'",
    "[timeouts]\nidle_s = -1": "headrace.toml: timeouts.idle_s: expected greater than 0, got -1",
    "[idempotency]\nanswer_bytes = 999999999": "headrace.toml: idempotency: answer_bytes is larger",
    "[limits]\nmax_body_bytes = 999999999": "headrace.toml: limits: max_body_bytes is larger than max_buffered_bytes",
    "listen = 7": "headrace.toml: listen: expected a valid dictionary or instance of Listen, got 7",
    "[listen\n": "headrace.toml: expected TOML: ",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_setting_is_named_with_its_file_and_key(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(text))
    assert str(caught.value).startswith(WRONG[text])


def test_all_wrong_settings_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load(write("[listen]\nport = -1\nworkers = 1000\n"))
    assert str(caught.value).count("\n") == 1


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LISTEN__PORT", "many")
    with pytest.raises(ConfigError, match=r"^environment: listen\.port: expected a valid integer"):
        load()
    monkeypatch.delenv("HEADRACE_LISTEN__PORT")
    monkeypatch.setenv("HEADRACE_LISEN__PORT", "1")
    with pytest.raises(
        ConfigError, match=r"^environment: HEADRACE_LISEN__PORT: no such key; did you mean 'listen'\?"
    ):
        load()
    monkeypatch.delenv("HEADRACE_LISEN__PORT")
    monkeypatch.setenv("HEADRACE_UPSTREAMS", "not json")
    with pytest.raises(ConfigError, match=r"^environment: .*expected JSON"):
        load()


def test_upstreams_may_come_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_UPSTREAMS", '[{"url": "http://model:8000", "models": ["a", "b"]}]')
    assert [upstream.name for upstream in load().upstreams] == ["model:8000"]


def test_a_wrong_flag_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^flag: listen\.port: expected less than or equal to 65535, got 99999$"
    ):
        load(None, {"listen": {"port": 99999}})


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^none\.toml: cannot be read: No such file or directory$"):
        load(Path("none.toml"))


def test_a_missing_ca_file_is_named_by_its_key() -> None:
    config = Config(pool={"ca_file": Path("/no/ca.pem")})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^pool\.ca_file: cannot read /no/ca\.pem: No such file"):
        engine_json(config, "", "")


def test_every_limit_and_engine_timeout_reaches_the_engine() -> None:
    """The engine has no defaults: it refuses a text in which a field is missing or unknown."""
    config = Config()
    sent = json.loads(engine_json(config, "c", "k"))
    assert sent["limits"] == config.limits.model_dump()
    assert set(sent["timeouts"]) < set(config.timeouts.model_dump())
