"""The whole configuration, and how it is loaded.

In: a TOML file, environment variables (`HEADRACE_SECTION__KEY`) and flags, the later ones winning. Out: a
`Config` that cannot be wrong, or a `ConfigError` that names where the value came from, the key, and what was
expected. Later code does not check again.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.sources import InitSettingsSource

from headrace.config.explain import explain, no_such_key
from headrace.config.sections import (
    Auth,
    Cors,
    EarlyData,
    Echo,
    Idempotency,
    Limits,
    Listen,
    Local,
    Log,
    Timeouts,
    Tls,
    Upstream,
    UpstreamPool,
)
from headrace.errors import ConfigError


class Config(BaseSettings):
    """Everything that `headrace serve` needs to know."""

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    listen: Listen = Listen()
    echo: Echo = Echo()
    tls: Tls = Tls()
    upstreams: list[Upstream] = []
    local: Local = Local()
    auth: Auth = Auth()
    cors: Cors = Cors()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    early_data: EarlyData = EarlyData()
    idempotency: Idempotency = Idempotency()
    pool: UpstreamPool = UpstreamPool()
    log: Log = Log()

    @model_validator(mode="after")
    def _check(self) -> Config:
        names = [upstream.name for upstream in self.upstreams]
        doubled = {name for name in names if names.count(name) > 1}
        if doubled:
            raise ValueError(f"upstreams: two have the name {min(doubled)!r}; give each a name of its own")
        if self.limits.max_body_bytes > self.limits.max_buffered_bytes:
            raise ValueError(
                "limits: max_body_bytes is larger than max_buffered_bytes; expected at most as much"
            )
        if self.idempotency.answer_bytes > self.idempotency.max_bytes:
            raise ValueError("idempotency: answer_bytes is larger than max_bytes; expected at most as much")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(init_settings, InitSettingsSource)
        kwargs = dict(init_settings.init_kwargs)
        file = kwargs.pop("_file", {})
        flags = InitSettingsSource(settings_cls, init_kwargs=kwargs)
        return flags, env_settings, InitSettingsSource(settings_cls, init_kwargs=file)


NOT_SETTINGS = {"HEADRACE_CONFIG", "HEADRACE_API_KEY", "HEADRACE_URL"}
"""Environment variables that the command line reads itself."""

DEFAULT_FILE = Path("headrace.toml")


def load(file: Path | None = None, flags: dict[str, Any] | None = None) -> Config:
    """Loads the configuration: `flags` win over the environment, that over `file`, and that over the
    defaults.

    `file`: a TOML file; the default is `headrace.toml` in the working directory, when it is there. `flags`:
    values by section and key.

    Raises `ConfigError`.
    """
    flags = flags or {}
    if file is None and DEFAULT_FILE.exists():
        file = DEFAULT_FILE
    values = _read(file) if file else {}
    _check_environment()
    try:
        build: Any = Config
        return cast("Config", build(_file=values, **flags))
    except ValidationError as error:
        lines = [explain(line, Config, flags, values, file) for line in error.errors()]
        raise ConfigError(detail="\n".join(lines)) from None
    except Exception as error:
        # This is how pydantic-settings says that a variable should be JSON and is not.
        raise ConfigError(detail=f"environment: {error}: expected JSON") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(detail=f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(detail=f"{file}: expected TOML: {error}") from None


def _check_environment() -> None:
    for name in os.environ:
        section = name.removeprefix("HEADRACE_").partition("__")[0].lower()
        if name.startswith("HEADRACE_") and name not in NOT_SETTINGS and section not in Config.model_fields:
            raise ConfigError(
                detail=f"environment: {name}: {no_such_key(section, list(Config.model_fields))}"
            )
