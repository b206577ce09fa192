"""`headrace serve`: the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.gateway import Gateway

log = logging.getLogger("headrace.serve")

T = TypeVar("T")

CUT = 3
"""The exit status when answers were cut: this is neither a fault (1) nor a wrong configuration (2)."""


def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", envvar="HEADRACE_CONFIG", help="A TOML file. [./headrace.toml, if it is there]"
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; `::` is every address. [127.0.0.1]")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port, for UDP and TCP. [4433]")] = None,
    upstream: Annotated[
        list[str] | None, typer.Option(help="The URL of a model server; may be given more than once.")
    ] = None,
    upstream_key_env: Annotated[
        str | None, typer.Option(help="The environment variable that holds the API key of every --upstream.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="A GGUF file, served when there is no upstream.")] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="A PEM file with the certificate and its chain.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="A PEM file with the certificate's key.")] = None,
    workers: Annotated[int | None, typer.Option(help="How many threads; 0 is one for each core. [0]")] = None,
    log_format: Annotated[str | None, typer.Option(help="`text` for people, or `json`. [text]")] = None,
) -> None:
    """Serve model servers over HTTP/3, HTTP/2 and HTTP/1.1, on one port.

    Without an upstream, a local model is served (see `headrace model install`). Without a certificate, a
    development certificate is made. `headrace config` prints every setting with its reason.

    The first SIGTERM or Ctrl-C lets running answers end, a second one cuts them. SIGHUP reads the
    configuration and the certificate again.
    """
    from headrace.config import load

    flags: dict[str, dict[str, Any]] = {
        "listen": {"host": host, "port": port, "workers": workers},
        "tls": {"certificate": certificate, "key": key},
        "local": {"model": model},
        "log": {"format": log_format},
    }
    given: dict[str, Any] = {
        name: kept
        for name, section in flags.items()
        if (kept := {k: v for k, v in section.items() if v is not None})
    }
    if upstream:
        own_key = {"api_key_env": upstream_key_env} if upstream_key_env else {}
        given["upstreams"] = [{"url": url, **own_key} for url in upstream]
    elif upstream_key_env:
        raise typer.BadParameter("expected --upstream with it; in a file, set api_key_env of [[upstreams]]")
    loaded = load(config, given)

    from headrace.observe.log import set_up

    set_up(loaded.log)
    raise typer.Exit(asyncio.run(run(loaded, lambda: load(config, given))))


async def run(config: Config, read_again: Callable[[], Config]) -> int:
    """Serves until SIGTERM or SIGINT, and returns the exit status: 0 when every answer came to its end, and
    `CUT` when some were cut. A second signal ends the gateway at once. SIGHUP reads the configuration and the
    certificate again."""
    from headrace.gateway import Gateway

    stop, stop_now, hang_up = asyncio.Event(), asyncio.Event(), asyncio.Event()
    _watch_signals(stop, stop_now, hang_up)
    certificate_pem, key_pem = _certificate(config)
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> Gateway:
            with_upstreams = config if config.upstreams else await _with_local_model(config, stack)
            return await stack.enter_async_context(Gateway(with_upstreams, certificate_pem, key_pem))

        gateway = await _unless(stop, start())
        if gateway is None:
            log.info("stopped before it was ready")
            return 0
        # What is there now stays, so the garbage collector need not walk through it while a token waits.
        gc.collect()
        gc.freeze()
        _announce(gateway)
        reloading = asyncio.create_task(_reload_on(hang_up, gateway, read_again))
        await stop.wait()
        reloading.cancel()
        running = gateway.server.snapshot()["exchanges"]
        log.info("going away: %s run on for at most %g s", _answers(running), config.timeouts.drain_s)
        drained = asyncio.create_task(gateway.drain())
        hurried = asyncio.create_task(stop_now.wait())
        await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not drained.done():
            log.warning("a second signal: ending at once")
            await gateway.drain_now()
        cut = await drained
        log.info("closed; %s", f"cut: {_answers(cut)}" if cut else "no answer was cut")
        return CUT if cut else 0


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work comes to; `None` when the gateway was to stop before, and then the work is cancelled."""
    begun, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({begun, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        begun.cancel()
    await asyncio.wait({begun})
    return None if begun.cancelled() else begun.result()


def _answers(count: int) -> str:
    return "1 answer" if count == 1 else f"{count} answers"


async def _reload_on(hang_up: asyncio.Event, gateway: Gateway, read_again: Callable[[], Config]) -> None:
    from headrace.observe.log import set_up

    while True:
        await hang_up.wait()
        hang_up.clear()
        try:
            config = read_again()
            if not config.upstreams:
                # The local model was started with the process, and stays.
                config = config.model_copy(update={"upstreams": gateway.config.upstreams})
            later = await gateway.reload(config, *_certificate(config))
        except HeadraceError as error:
            log.error("SIGHUP: nothing was changed: %s", error)
            continue
        except Exception:
            log.exception("SIGHUP: a bug in headrace; the next SIGHUP is heard")
            continue
        set_up(config.log)
        log.info("SIGHUP: the configuration and the certificate were read again")
        if later:
            log.warning("SIGHUP: changes of %s hold from the next start on", ", ".join(later))
        _announce(gateway)


def _watch_signals(stop: asyncio.Event, stop_now: asyncio.Event, hang_up: asyncio.Event) -> None:
    def handle() -> None:
        (stop_now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle)
    loop.add_signal_handler(signal.SIGHUP, hang_up.set)


def _certificate(config: Config) -> tuple[str, str]:
    from headrace import dev_certificate
    from headrace.config import read_text

    if config.tls.certificate and config.tls.key:
        certificate = read_text(config.tls.certificate, "tls.certificate")
        return certificate, read_text(config.tls.key, "tls.key")
    made, is_new = dev_certificate.ensure()
    log.info(
        "development certificate%s: clients must trust %s",
        " made" if is_new else "",
        dev_certificate.ca_file(),
    )
    return made.chain_pem, made.key_pem


async def _with_local_model(config: Config, stack: contextlib.AsyncExitStack) -> Config:
    from headrace import dev_certificate
    from headrace.local import model as local

    local.check_installed()
    file, name = local.model_file(config.local)
    log.info("loading %s from %s", name, file)
    folder = dev_certificate.state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    served = await stack.enter_async_context(local.serve(config.local, folder / "local-model.log"))
    fields = {
        "event": "local_model",
        "url": served.url,
        "model": served.name,
        "pid": served.pid,
        "slots": served.slots,
    }
    log.info(
        "local model %s: %s, process %d, %d slots",
        served.name,
        served.url,
        served.pid,
        served.slots,
        extra={"fields": fields},
    )
    return config.model_copy(update={"upstreams": [served.as_upstream()]})


def _announce(gateway: Gateway) -> None:
    host, port = gateway.server.address
    shown = f"[{host}]" if ":" in host else host
    models = sorted({model for upstream in gateway.upstreams.all for model in upstream.models})
    for upstream in gateway.upstreams.all:
        state = "healthy" if upstream.is_healthy else f"unhealthy: {upstream.reason}"
        log.info("upstream %s: %s, %s", upstream.name, upstream.config.url, state)
        if not upstream.knows_models:
            why = upstream.unknown_because
            log.warning(
                "upstream %s: its models are not known, so it is asked for all: %s", upstream.name, why
            )
    fields = {"event": "ready", "host": host, "port": port, "models": models}
    log.info(
        "https://%s:%d is ready: HTTP/3 (UDP), HTTP/2 and HTTP/1.1 (TCP); models: %s",
        shown,
        port,
        ", ".join(models) or "none known",
        extra={"fields": fields},
    )
