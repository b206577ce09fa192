"""The configuration. `sections.py` is the manual: every setting with its default, its unit and its reason."""

from __future__ import annotations

from headrace import extras

extras.need("serve", "a server")

from headrace.config.engine import engine_json, files, read_text
from headrace.config.load import Config, load
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
    Policy,
    Timeouts,
    Tls,
    Upstream,
    UpstreamPool,
    key_of_environment,
)

__all__ = [
    "Auth",
    "Config",
    "Cors",
    "EarlyData",
    "Echo",
    "Idempotency",
    "Limits",
    "Listen",
    "Local",
    "Log",
    "Policy",
    "Timeouts",
    "Tls",
    "Upstream",
    "UpstreamPool",
    "engine_json",
    "files",
    "key_of_environment",
    "load",
    "read_text",
]
