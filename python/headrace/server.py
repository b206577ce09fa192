"""A server for any handler.

In: a configuration and a handler. Out: an asyncio task for each exchange, and a life cycle: start, drain,
close. It must not know what the handler does: the gateway is one handler, and an ASGI application can be
another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import TracebackType

from headrace import _engine
from headrace.config import Config, engine_json, files
from headrace.errors import ClientGoneError, ConfigError, HeadraceError, Kind, kinds, with_file
from headrace.events import dialects
from headrace.exchange import Exchange, Handler
from headrace.loop import bridge

log = logging.getLogger("headrace.server")

LAST_WORDS_S = 1.0
"""How long handlers have to notice that their exchange is over, before they are cancelled."""


class Server:
    """Serves HTTP/3, HTTP/2 and HTTP/1.1 on one port.

    `certificate_pem`, `key_pem`: the PEM texts themselves, and not files. Use it as `async with Server(...)
    as server`. It needs the extra `serve`, for its configuration: `pip install 'headrace[serve]'`.
    """

    def __init__(self, config: Config, certificate_pem: str, key_pem: str, handler: Handler) -> None:
        self._json = engine_json(config, certificate_pem, key_pem)
        self._files = files(config)
        self._handler = handler
        self._engine: _engine.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Binds and serves. Raises `ConfigError` when the address or the certificate cannot be used."""
        try:
            self._engine = _engine.Server.start(self._json, bridge(), self._begin)
        except ConfigError as error:
            raise with_file(error, self._files) from None

    @property
    def engine(self) -> _engine.Server:
        if self._engine is None:
            raise RuntimeError("the server is not started; call start(), or use it in `async with`")
        return self._engine

    @property
    def address(self) -> tuple[str, int]:
        """The IP address and the port, which are the same for UDP and TCP."""
        return self.engine.address

    def set_certificate(self, config: Config, certificate_pem: str, key_pem: str) -> None:
        """Shows another certificate (PEM texts) from the next connection on. Connections that are there do
        not notice.

        `config`: the one that names their files. Raises `ConfigError`; the one before stays.
        """
        try:
            self.engine.set_certificate(certificate_pem, key_pem)
        except ConfigError as error:
            raise with_file(error, files(config)) from None

    def snapshot(self) -> _engine.ServerStats:
        """The gauges and counts of the engine."""
        return self.engine.snapshot()

    async def drain(self, grace_s: float) -> int:
        """Lets running answers end, and closes the server.

        No new request is taken. Answers that still run after `grace_s` seconds are told so, and cut; returns
        how many that were. A second call with less time ends the first one sooner.
        """
        cut = await self.engine.drain(grace_s)
        if self._tasks:
            # Their exchanges are over, but the handlers may still have something to say about them.
            await asyncio.wait(self._tasks, timeout=LAST_WORDS_S)
        return cut

    async def close(self) -> None:
        """Closes every connection at once, and waits for the handlers."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.engine.close()

    async def __aenter__(self) -> Server:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _begin(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._run(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)
        except ClientGoneError:
            pass
        except HeadraceError as error:
            log.warning("%r: %s", exchange, error)
            await _answer_failure(exchange, error.kind)
        except Exception:
            log.exception("%r: the handler failed", exchange)
            await _answer_failure(exchange, kinds()["internal"])
        finally:
            # Whatever is not finished by now must not look finished; does nothing otherwise.
            exchange.reset(kinds()["internal"].h3_code)


async def _answer_failure(exchange: Exchange, kind: Kind) -> None:
    """While no head was sent, the client is told by a status; of what was found, the log alone is told."""
    if exchange.phase != "open":
        return
    message = f"{kind.sentence}; the server's log says why"
    body = dialects.error_body(exchange.request.path, kind.status, kind.slug, message)
    with contextlib.suppress(HeadraceError):
        await exchange.answer(kind.status, [("content-type", "application/json")], body)
