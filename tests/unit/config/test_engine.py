"""The simulator runs with the defaults that are stated in Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.client import connection
from headrace.config import Config, Listen, engine_json

FILE = Path(__file__).parents[3] / "crates" / "headrace-sim" / "src" / "defaults.json"


def stated() -> dict[str, Any]:
    return {
        "server": json.loads(engine_json(Config(listen=Listen(workers=1)), "", "")),
        "client": {
            "idle_timeout_s": connection.IDLE_TIMEOUT_S,
            "stream_window": connection.STREAM_WINDOW,
            "connection_window": connection.CONNECTION_WINDOW,
        },
    }


def test_the_simulator_has_the_defaults_of_the_product() -> None:
    """After a change: `python -m tests.unit.config.test_engine` writes the file anew."""
    assert json.loads(FILE.read_text()) == stated()


if __name__ == "__main__":
    FILE.write_text(json.dumps(stated(), indent=2) + "\n")
