"""Logs: what happened, on standard error, as text for people or JSON for machines.

In: a request's outcome. Out: one line, written by a thread of its own (`line_writer.py`). No key, no prompt,
no answer, no field of a request is ever in it; and what a peer said is escaped and cut to size here, for all
lines.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Any

from headrace.config import Log
from headrace.exchange import Exchange
from headrace.observe.line_writer import LineWriter
from headrace.observe.outcome import Outcome
from headrace.printable import clipped

access_log = logging.getLogger("headrace.access")


MOST_LINE = 16 * 1024
"""How many characters one line may have; a traceback is shorter."""


class LineHandler(logging.Handler):
    """Formats a record where it is logged, and leaves the writing to another thread."""

    def __init__(self, config: Log, descriptor: int) -> None:
        super().__init__()
        self.writer = LineWriter(descriptor, config.max_waiting_bytes, self._tell_dropped)
        self.use(config)

    def use(self, config: Log) -> None:
        self.setFormatter(JsonFormatter() if config.format == "json" else TextFormatter())
        self.writer.most_bytes = config.max_waiting_bytes

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:
            line = f"a line of {record.name} could not be formatted: {type(error).__name__}"
        self.writer.write(line)

    def flush(self) -> None:
        self.writer.flush()

    def _tell_dropped(self, count: int) -> str:
        text = "%d lines were dropped: nobody reads the log as fast as it is written (log.max_waiting_bytes)"
        return self.format(logging.LogRecord("headrace.log", logging.WARNING, "", 0, text, (count,), None))


_handlers: list[LineHandler] = []
"""The handler of this process, once there is one. Its thread goes on when the configuration changes."""


def set_up(config: Log) -> None:
    """Sends all of headrace's logs, and asyncio's, to standard error."""
    if not _handlers:
        _handlers.append(LineHandler(config, sys.stderr.fileno()))
    _handlers[0].use(config)
    for name in ("headrace", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers[:] = _handlers
        logger.setLevel(config.level.upper())
        logger.propagate = False


class TextFormatter(logging.Formatter):
    """A record is one line. What follows it (a traceback) is set off, so that no text from anywhere passes
    for a line of the log."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = f"{stamp} {level}{clipped(record.getMessage(), MOST_LINE)}"
        if not record.exc_info:
            return text
        lines = self.formatException(record.exc_info).split("\n")
        return "\n".join([text, *(f"  | {clipped(line, MOST_LINE)}" for line in lines)])


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        told = {"message": record.getMessage()[:MOST_LINE], "logger": record.name}
        fields |= getattr(record, "fields", None) or told
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)[:MOST_LINE]
        # JSON escapes all that is not ASCII, and of ASCII all that commands a terminal but this one.
        return json.dumps(fields).replace("\x7f", "\\u007f")


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
        rest = " ".join(f"{name}={_plain(value)}" for name, value in fields.items() if value is not None)
        access_log.info("%s %s %s", client, line, rest)


def _plain(value: Any) -> str:
    """A value of one word as it is. Others are put in quotes, so that none of them passes for a field of its
    own."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if re.search(r'[\s"=]', text) else text


def describe(exchange: Exchange, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """The fields of one line of the access log. Times are in milliseconds."""
    request, report = exchange.request, outcome.report
    status = outcome.status or (report.status if report else None)
    cause = outcome.cause or (report.cause if report else "done")
    fields: dict[str, Any] = {
        "id": exchange.id,
        "client": request.client[0],
        "method": clipped(request.method),
        "path": clipped(request.path),
        "protocol": request.protocol,
        "status": status or "-",
        "cause": cause,
        "ms": round(seconds * 1000, 1),
        "joined": True if outcome.is_joined else None,
        "early": True if outcome.is_early else None,
        "key": outcome.key,
        "model": outcome.model and clipped(outcome.model),
        "upstream": outcome.upstream,
        "runs": outcome.runs or None,
        "tried": ",".join(outcome.tried) if len(outcome.tried) > 1 else None,
    }
    if report:
        fields |= {
            "ttft_ms": _ms(report.ttft),
            "events": report.events,
            "gap_p50_ms": _ms(report.gap(0.5)) if report.events > 1 else None,
            "gap_p99_ms": _ms(report.gap(0.99)) if report.events > 1 else None,
            "gateway_p99_ms": round(report.hold(0.99) * 1000, 3) if report.events else None,
            "bytes": report.bytes,
            "reused": report.upstream_reused,
            "error": report.error.kind.slug if report.error else None,
        }
    return fields


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
