"""A scenario: a link, a load, servers and protocols, what happens when, and what is shown.

In: the name of a scenario that comes with the package, or a file; both are TOML. Out: a `Scenario` that
was checked. An error names the file, the key, and what was expected.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headrace.errors import ConfigError
from headrace_lab.clients.choose import CLIENTS, TITLES
from headrace_lab.link import Profile, commands
from headrace_lab.measure.measures import MEASURES
from headrace_lab.model.script import from_fields
from headrace_lab.peers.servers import SERVERS

ProtocolName = Literal["http1", "http2", "http3"]
Client = Literal["headrace", "aioquic", "qh3"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Load(_Strict):
    """What the clients do (`headrace_lab.clients.workload.Workload`). Durations are in seconds."""

    connections: int = Field(1, ge=1, le=1000)
    streams: int = Field(1, ge=1, le=1000)
    rounds: int = Field(1, ge=1)
    pause_s: float = Field(0.0, ge=0)
    tokens: int = Field(100, ge=1)
    interval_ms: float = Field(20.0, gt=0)
    script: dict[str, Any] = {}
    spread_s: float = Field(0.02, ge=0)
    cold: bool = False
    resumed: bool = False
    stop_places: int = Field(0, ge=0)
    stop_after_s: tuple[float, float] = (0.1, 0.2)
    slow_places: int = Field(0, ge=0)
    slow_at_s: float = Field(1.0, ge=0)
    slow_for_s: float = Field(2.0, ge=0)
    slow_script: dict[str, Any] = {}
    bulk: bool = False
    limit_s: float = Field(60.0, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Load:
        if self.resumed and not self.cold:
            raise ValueError("resumed: expected cold = true beside it")
        if self.stop_places + self.slow_places > self.connections * self.streams:
            raise ValueError("expected stop_places + slow_places to be at most connections x streams")
        for name in ("script", "slow_script"):
            try:
                from_fields(getattr(self, name))
            except TypeError as error:
                raise ValueError(f"{name}: expected fields of a script; {error}") from None
        return self


class Event(BaseModel):
    """A command for the link with its fields (`headrace_lab.link.commands`), or `migrate`, which
    headrace's own client carries out."""

    model_config = ConfigDict(extra="allow", frozen=True)
    at_s: float = Field(ge=0)
    do: str

    @model_validator(mode="after")
    def _check(self) -> Event:
        if self.do != "migrate":
            try:
                commands.translate(self.model_dump(exclude={"at_s"}), Profile.plans)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return self


class Sweep(_Strict):
    """One key of the link that takes several values; each value is a point."""

    key: str
    values: list[float | str] = Field(min_length=1)
    title: str = ""


class RunPart(_Strict):
    servers: list[str] = Field(min_length=1)
    protocols: list[ProtocolName] = Field(min_length=1)
    clients: list[Client] = ["headrace"]
    """The clients for HTTP/3."""
    seeds: int = Field(3, ge=1)
    baseline: str | None = None
    """`server/protocol`: the others are compared with it, and it is run twice for the noise floor."""

    @model_validator(mode="after")
    def _check(self) -> RunPart:
        for name in self.servers:
            if name not in SERVERS:
                raise ValueError(f"servers: expected some of {', '.join(SERVERS)}; got {name!r}")
        return self


class Quick(_Strict):
    """What `--quick` changes."""

    seeds: int = Field(1, ge=1)
    values: list[float | str] | None = None
    load: dict[str, Any] = {}


class Show(_Strict):
    measures: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Show:
        for name in self.measures:
            if name not in MEASURES:
                raise ValueError(f"measures: expected some of {', '.join(MEASURES)}; got {name!r}")
        return self


class Scenario(_Strict):
    name: str
    title: str
    """The question that the scenario answers, as a heading."""
    about: str = ""
    link: dict[str, Any] = {}
    """`profile`, a key of `headrace_lab.link.PROFILES`, and fields of `Profile` that differ from it."""
    sweep: Sweep | None = None
    load: Load = Load()  # type: ignore[call-arg]
    run: RunPart
    events: list[Event] = []
    show: Show
    quick: Quick = Quick()  # type: ignore[call-arg]

    @model_validator(mode="after")
    def _check(self) -> Scenario:
        try:
            self.quickened()
        except ValidationError as error:
            raise ValueError(f"quick.load: {_problem(error.errors()[0])}") from None
        for point in self.points():
            try:
                Profile.from_fields(self.link_at(point))
            except (ConfigError, TypeError) as error:
                raise ValueError(f"link: {error}") from None
        if self.run.baseline and self.run.baseline not in [f"{s}/{p}" for s, p, _ in self.stacks()]:
            raise ValueError(
                f"run.baseline: expected server/protocol of those it runs; got {self.run.baseline!r}"
            )
        return self

    def quickened(self) -> Scenario:
        """Returns the scenario as it is with `--quick`."""
        load = Load(**{**self.load.model_dump(), **self.quick.load})
        run = self.run.model_copy(update={"seeds": self.quick.seeds})
        sweep = self.sweep
        if sweep and self.quick.values:
            sweep = sweep.model_copy(update={"values": self.quick.values})
        return self.model_copy(update={"load": load, "run": run, "sweep": sweep})

    def points(self) -> list[float | str | None]:
        return list(self.sweep.values) if self.sweep else [None]

    def link_at(self, point: float | str | None) -> dict[str, Any]:
        """Returns the link's fields at a point."""
        return {**self.link, **({self.sweep.key: point} if self.sweep else {})}

    def stacks(self) -> list[tuple[str, str, str]]:
        """Returns `(server, protocol, client)` of all that is compared. The controls speak HTTP/1.1 alone."""
        return [
            (server, protocol, client)
            for server in self.run.servers
            for protocol in self.run.protocols
            if protocol == "http1" or not server.startswith("control-")
            for client in (self.run.clients if protocol == "http3" else ["headrace"])
        ]


def stack_name(server: str, protocol: str, client: str = "headrace") -> str:
    """Returns `caddy HTTP/3`, with the client when it is not headrace's."""
    return f"{server} {TITLES[protocol]}" + (f" by {client}" if client != "headrace" else "")


FOLDERS = ("tokens", "connections")
"""Where the scenarios that come with the package are: what a stream is like, and how it begins, moves and
ends."""


def shipped() -> dict[str, Traversable]:
    """Returns the scenarios that come with the package, by name."""
    folders = [resources.files("headrace_lab.scenarios").joinpath(name) for name in FOLDERS]
    files = (file for folder in folders for file in sorted(folder.iterdir(), key=lambda file: file.name))
    return {file.name.removesuffix(".toml"): file for file in files}


def load(name: str) -> Scenario:
    """Reads a scenario. `name`: of one that comes with the package, or a path. Raises `ConfigError`."""
    if name.endswith(".toml") or "/" in name:
        file = Path(name)
        if not file.exists():
            raise ConfigError(detail=f"{name}: this file does not exist")
        text, where = file.read_text(), name
    elif known := shipped().get(name):
        text, where = known.read_text(), known.name
    else:
        raise ConfigError(
            detail=f"scenario {name!r}: expected a path to a .toml file, or one of {', '.join(shipped())}"
        )
    return parse(text, where)


def parse(text: str, where: str) -> Scenario:
    """Reads a scenario from TOML. `where`: the file's name, for errors. Raises `ConfigError`."""
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(detail=f"{where}: expected TOML; {error}") from None
    try:
        return Scenario(name=Path(where).stem, **fields)
    except ValidationError as error:
        raise ConfigError(detail="; ".join(f"{where}: {_problem(e)}" for e in error.errors())) from None


def _problem(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"{key} is missing"
    if error["type"] == "extra_forbidden":
        return f"{key}: there is no such key"
    said = error["msg"].removeprefix("Value error, ")
    said = said[0].lower() + said[1:].replace("Input should be", "expected")
    got = "" if isinstance(error["input"], dict) else f"; got {error['input']!r}"
    return f"{key}: {said.replace('input should be', 'expected')}{got}"


__all__ = ["CLIENTS", "Scenario", "load", "parse", "shipped", "stack_name"]
