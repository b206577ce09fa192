"""Logs: what happened, on standard error, as text for people or JSON for machines.

In: a request's outcome. Out: one line. No key, no prompt, no answer is ever in it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from headrace.config import Log
from headrace.exchange import Exchange
from headrace.observe.outcome import Outcome

access_log = logging.getLogger("headrace.access")


def set_up(config: Log) -> None:
    """Sends all of headrace's logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if config.format == "json" else TextFormatter())
    logger = logging.getLogger("headrace")
    logger.handlers[:] = [handler]
    logger.setLevel(config.level.upper())
    logger.propagate = False


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = f"{stamp} {level}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        fields |= getattr(record, "fields", None) or {"message": record.getMessage(), "logger": record.name}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class Access:
    """The access log."""

    def __init__(self, config: Log) -> None:
        self._is_on = config.access
        self._is_json = config.format == "json"

    def write(self, exchange: Exchange, outcome: Outcome, seconds: float) -> None:
        if not self._is_on or not access_log.isEnabledFor(logging.INFO):
            return
        fields = describe(exchange, outcome, seconds)
        if self._is_json:
            access_log.info("", extra={"fields": fields})
            return
        client = fields.pop("client")
        line = " ".join(str(fields.pop(name)) for name in ("method", "path", "protocol", "status", "cause"))
        rest = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        access_log.info("%s %s %s", client, line, rest)


def describe(exchange: Exchange, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """The fields of one line. Times in milliseconds."""
    request, report = exchange.request, outcome.report
    status = outcome.status or (report.status if report else None)
    cause = outcome.cause or (report.cause if report else "done")
    fields: dict[str, Any] = {
        "id": exchange.id,
        "client": request.client[0],
        "method": request.method,
        "path": request.path,
        "protocol": request.protocol,
        "status": status or "-",
        "cause": cause,
        "ms": round(seconds * 1000, 1),
        "joined": True if outcome.is_joined else None,
        "early": True if outcome.is_early else None,
        "key": outcome.key,
        "model": outcome.model,
        "upstream": outcome.upstream,
    }
    if report:
        fields |= {
            "ttft_ms": _ms(report.ttft),
            "events": report.events,
            "gap_p50_ms": _ms(report.gap(0.5)) if report.events > 1 else None,
            "gap_p99_ms": _ms(report.gap(0.99)) if report.events > 1 else None,
            "hold_p99_ms": round(report.hold(0.99) * 1000, 3) if report.events else None,
            "bytes": report.bytes,
            "reused": report.upstream_reused,
            "error": report.error.kind.slug if report.error else None,
        }
    return fields


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
