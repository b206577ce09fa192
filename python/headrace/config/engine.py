"""What the engine reads of the configuration, as the JSON text that it takes.

In: a `Config`, and the texts of the certificate. Out: JSON. The engine refuses it when a field is missing.
"""

from __future__ import annotations

import json
from pathlib import Path

from headrace import echo
from headrace.config.load import Config
from headrace.errors import ConfigError

PROBE_PATHS = ["/healthz", "/readyz"]
"""What balancers ask for: these requests have a reserve."""


def engine_json(config: Config, certificate_pem: str, key_pem: str) -> str:
    """The part of the configuration that the engine reads, as the JSON text that it takes.

    Raises `ConfigError` when the CA file cannot be read.
    """
    limits = config.limits.model_dump()
    engine_timeouts = {
        "handshake_s",
        "silent_handshake_s",
        "request_s",
        "short_answer_s",
        "idle_s",
        "suspect_s",
        "unused_s",
        "stalled_reader_s",
        "ticket_s",
    }
    return json.dumps(
        {
            "host": config.listen.host,
            "port": config.listen.port,
            "workers": config.listen.worker_count,
            "certificate_pem": certificate_pem,
            "key_pem": key_pem,
            "alt_svc_max_age_s": config.listen.alt_svc_max_age_s,
            "probe_paths": PROBE_PATHS,
            "congestion": config.listen.congestion,
            "echo": echo.engine(**config.echo.model_dump()),
            "steering": config.listen.steering,
            "limits": limits,
            "timeouts": config.timeouts.model_dump(include=engine_timeouts),
            "upstream": {
                "ca_pem": read_text(config.pool.ca_file, "pool.ca_file") if config.pool.ca_file else "",
                "max_head_bytes": config.pool.max_head_bytes,
                "max_fields": config.limits.max_fields,
                "pool_idle_per_upstream": config.pool.idle_per_upstream,
                "pool_idle_s": config.pool.idle_s,
                "pool_warm_s": config.pool.warm_s,
            },
        }
    )


def files(config: Config) -> dict[str, Path | None]:
    """The files whose texts the engine reads, by their settings: its errors begin with the setting."""
    return {
        "tls.certificate": config.tls.certificate,
        "tls.key": config.tls.key,
        "pool.ca_file": config.pool.ca_file,
    }


def read_text(path: Path, key: str) -> str:
    """A file that a setting names. Raises `ConfigError` that names the key."""
    try:
        return path.expanduser().read_text()
    except OSError as error:
        raise ConfigError(detail=f"{key}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(detail=f"{key}: expected a PEM file, and {path} is not text") from None
