"""Requests that tests make of the scripted model."""

from __future__ import annotations

import json
from typing import Any

PATH = "/v1/chat/completions"
JSON = [("content-type", "application/json")]


def script(**fields: Any) -> bytes:
    """The body of a request that the scripted model answers as told."""
    return json.dumps({"model": "scripted", "stream": True, "script": fields}).encode()
