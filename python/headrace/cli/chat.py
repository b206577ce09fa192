"""`headrace chat`: talk to a model over HTTP/3, and see how its tokens came."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from headrace.events import dialects
from headrace.printable import clipped, for_terminal, one_line

DEFAULT_URL = "https://localhost:4433"
PATH = "/v1/chat/completions"
API = dialects.of(PATH)


def chat(
    prompt: Annotated[
        str | None,
        typer.Argument(help="One question. Without it, a conversation begins; `-` reads standard input."),
    ] = None,
    url: Annotated[str, typer.Option(envvar="HEADRACE_URL", help="The gateway's URL.")] = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="The model to ask. [the gateway's first]")] = None,
    system: Annotated[
        str | None, typer.Option(help="The system prompt, which the model is told first.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="How long an answer may be, in tokens.")] = 512,
    api_key: Annotated[
        str | None, typer.Option(envvar="HEADRACE_API_KEY", help="The key for a gateway that has keys.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="A PEM file of certificates to trust beside the system's.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option(help="Do not check the server's certificate, for experiments.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no figures after an answer.")] = False,
) -> None:
    """Talk to a model over HTTP/3: see its tokens as they come, and then how they came.

    Ctrl-C stops the answer: its stream is reset, and the connection stays. Ctrl-D ends the conversation.
    Tokens go to standard output, and everything else to standard error.
    """
    from headrace.client import Trust

    is_piped = prompt == "-" or (prompt is None and not sys.stdin.isatty())
    question = sys.stdin.read() if is_piped else prompt
    trust = Trust(ca_file=ca or _development_ca(url), anybody=insecure)
    with asyncio.Runner() as runner:
        talk = Talk(url, trust, api_key, max_tokens, quiet)
        if system:
            talk.messages.append({"role": "system", "content": system})
        runner.run(talk.open(model))
        if question is not None:
            raise typer.Exit(0 if ask(runner, talk, question) else 1)
        print(f"{clipped(talk.model)} at {url}. Ctrl-C stops an answer, Ctrl-D ends.", file=sys.stderr)
        while (question := _read_line()) is not None:
            if question.strip():
                ask(runner, talk, question)
        runner.run(talk.close())


def ask(runner: asyncio.Runner, talk: Talk, question: str) -> bool:
    """Asks once. Returns `False` when the answer did not come to its end."""
    from headrace.errors import HeadraceError

    try:
        return runner.run(talk.answer(question))
    except KeyboardInterrupt:
        return False
    except HeadraceError as error:
        print(f"\nheadrace: {one_line(str(error))}", file=sys.stderr)
        return False


def _read_line() -> str | None:
    try:
        return input("> ")
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)
        return None


def _development_ca(url: str) -> Path | None:
    """The development authority of this machine, when the server is on this machine."""
    from headrace import dev_certificate

    host = urlsplit(url).hostname or ""
    is_local = host in ("localhost", "127.0.0.1", "::1", socket.gethostname())
    file = dev_certificate.ca_file()
    return file if is_local and file.exists() else None


@dataclass
class Timing:
    """When the parts of an answer were read (`time.monotonic_ns()`)."""

    sent_ns: int = 0
    token_ns: list[int] = field(default_factory=list)

    def summary(self, protocol: str) -> str:
        if not self.token_ns:
            return f"{protocol}, no tokens"
        first = (self.token_ns[0] - self.sent_ns) / 1e6
        parts = [protocol, f"{len(self.token_ns)} tokens", f"TTFT {first:.1f} ms"]
        gaps = sorted((b - a) / 1e6 for a, b in zip(self.token_ns, self.token_ns[1:], strict=False))
        if gaps:
            p50, p99 = gaps[len(gaps) // 2], gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))]
            parts.append(f"gaps p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        return ", ".join(parts)


class Talk:
    """One conversation over one connection."""

    def __init__(self, url: str, trust: Any, api_key: str | None, max_tokens: int, quiet: bool) -> None:
        self.url, self.trust, self.max_tokens, self.quiet = url, trust, max_tokens, quiet
        self.headers = [API.key_header(api_key)] if api_key else []
        self.messages: list[dict[str, str]] = []
        self.model = ""
        self.connection: Any = None

    async def open(self, model: str | None) -> None:
        from headrace.client import connect

        await asyncio.to_thread(_explain_closed_port, self.url)
        self.connection = await connect(self.url, self.trust)
        self.model = model or await self._first_model()

    async def close(self) -> None:
        self.connection.close()

    async def _first_model(self) -> str:
        from headrace.errors import ConfigError

        response = self.connection.request("GET", "/v1/models", self.headers)
        status, body = await response.head(), await response.read()
        if status != 200:
            raise ConfigError(detail=f"{self.url}/v1/models answers {status}: {_message(body)}")
        try:
            models = [entry["id"] for entry in json.loads(body)["data"]]
        except (ValueError, TypeError, LookupError, RecursionError):
            raise ConfigError(detail=f"{self.url}/v1/models is not a list of models") from None
        if not models:
            raise ConfigError(detail="the gateway knows no model yet; name one with --model, or try again")
        return str(models[0])

    async def answer(self, question: str) -> bool:
        """Streams one answer to standard output. Returns `True` when it came to its end."""
        import time

        from headrace.client.events import EventReader

        self.messages.append({"role": "user", "content": question})
        if not self.connection.is_open:
            await self.open(self.model)
        body = {"model": self.model, "messages": self.messages, "max_tokens": self.max_tokens, "stream": True}
        timing, reader, text = Timing(time.monotonic_ns()), EventReader(), ""
        # A pipe gets the model's own bytes; a terminal would do what they say.
        show = for_terminal if sys.stdout.isatty() else str
        headers = [*self.headers, ("content-type", "application/json"), ("accept", "text/event-stream")]
        response = self.connection.request("POST", PATH, headers, json.dumps(body).encode())
        is_whole = False
        try:
            if await response.head() != 200:
                message = one_line(_message(await response.read()))
                print(f"headrace: {response.status}: {message}", file=sys.stderr)
                self.messages.pop()
                return False
            async for batch in response.chunks():
                for chunk in batch:
                    for data in reader.feed(chunk.data):
                        piece = _content(data)
                        if piece:
                            timing.token_ns.append(chunk.at_ns)
                            text += piece
                            sys.stdout.write(show(piece))
                sys.stdout.flush()
            is_whole = True
        except asyncio.CancelledError:
            response.stop()
            print(" [stopped]", end="", file=sys.stderr)
        self.messages.append({"role": "assistant", "content": text})
        print(flush=True)
        if not self.quiet:
            print(f"[{timing.summary('HTTP/3')}]", file=sys.stderr)
        return is_whole


def _content(data: str) -> str:
    """The text in one event of a chat completion. Raises `StreamError` when the event says that the answer
    broke off."""
    from headrace.errors import StreamError

    if API.is_last_data(data):
        return ""
    try:
        value = json.loads(data)
        if error := dialects.error_in(value):
            raise StreamError("truncated", error)
        choices = value.get("choices") or [{}]
        return str(choices[0].get("delta", {}).get("content") or "")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise StreamError("protocol", "an event is not a chat completion's") from None


def _message(body: bytes) -> str:
    return dialects.error_message(body) or body.decode("utf-8", "replace").strip()


def _explain_closed_port(url: str) -> None:
    """Raises `ConnectError` when nothing listens at a URL. A closed UDP port is silent and a closed TCP port
    is not, so that one is asked first, and nobody has to wait for a timeout."""
    from headrace.errors import ConnectError

    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname or "", address.port or 443), timeout=2).close()
    except ConnectionRefusedError:
        start = "" if os.environ.get("HEADRACE_URL") else "; start it with `headrace serve`"
        raise ConnectError("connect", f"nothing listens at {url}{start}") from None
    except OSError:
        pass
