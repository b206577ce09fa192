"""`headrace lab`: what each protocol does to a stream of tokens, measured and drawn.

In: a command line. Out: results in a folder, a page made of them, words on the terminal. This file must not
know how anything is measured; what a command needs is imported when it is called.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace_lab.run.cell import Options
    from headrace_lab.run.plan import Stack
    from headrace_lab.run.target import Target
    from headrace_lab.scenarios.scenario import Scenario

HELP = """Measure what a network does to token streams, over each protocol, for any server.

A *scenario* says what the network is like, what the clients ask, and which servers are compared. The lab runs
it with a scripted model, whose tokens are due at known moments, and counts what comes late.

1. `headrace lab list` shows the scenarios.
2. `sudo headrace lab run fan-out --quick` runs one, in about a minute. The emulated network needs root;
   `--on relay` does not, and carries HTTP/3 alone.
3. `headrace lab report` makes a page with plots of all results.
4. `headrace lab run fan-out --target https://llm.example.org --model NAME` asks a server of yours instead.
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help=HELP)

RESULTS = Path("lab-results")
ON_A_TARGET = "A server of yours"
Folder = Annotated[Path, typer.Argument(help="The folder with the results.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Take fewer seeds, points and tokens: to see whether it works.")
]
Seed = Annotated[
    int, typer.Option(help="The first seed. The same seed loses the same packets, for every server.")
]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="How many seeds. [default: the scenario's; 1 with --target]")
]
Server = Annotated[list[str] | None, typer.Option(help="Run this server only. May be given more than once.")]
ProtocolOption = Annotated[
    list[str] | None,
    typer.Option(help="Run http1, http2 or http3 only. May be given more than once."),
]
On = Annotated[
    str | None,
    typer.Option(
        help="Which network: `link` (needs root), `relay` (HTTP/3 alone) or `loopback` (no delay, no loss). "
        "[default: link]"
    ),
]
Out = Annotated[Path, typer.Option(help="The folder for the results.")]
TargetUrl = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=ON_A_TARGET,
        help="Ask the server at this URL, over this machine's own network. There is no emulated link then, "
        "and the answers are at your cost.",
    ),
]
TargetPath = Annotated[str, typer.Option(rich_help_panel=ON_A_TARGET, help="The path to ask.")]
TargetModel = Annotated[str, typer.Option(rich_help_panel=ON_A_TARGET, help="The model to ask for.")]
TargetTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        rich_help_panel=ON_A_TARGET,
        help="The most tokens of each answer. [default: as many as the scenario's answers have]",
    ),
]
TargetBody = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=ON_A_TARGET,
        help='Further members of the request\'s body, as JSON: `{"temperature": 0}`.',
    ),
]
TargetHeader = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=ON_A_TARGET,
        help="A further header field: `authorization: Bearer ...`. May be given more than once.",
    ),
]
TargetCa = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=ON_A_TARGET,
        help="Trust the certificates in this file (PEM). [default: no certificate is checked]",
    ),
]


@app.command("list")
def list_() -> None:
    """List the scenarios that come with the lab, each with the question that it answers."""
    from headrace_lab.scenarios import scenario

    for name in scenario.shipped():
        print(f"{name:15} {scenario.load(name).title}")


@app.command()
def run(
    scenarios: Annotated[
        list[str], typer.Argument(help="Names (see `headrace lab list`), or paths of .toml files.")
    ],
    quick: Quick = False,
    seed: Seed = 1,
    seeds: Seeds = None,
    server: Server = None,
    protocol: ProtocolOption = None,
    on: On = None,
    out: Out = RESULTS,
    target: TargetUrl = None,
    path: TargetPath = "/v1/chat/completions",
    model: TargetModel = "",
    max_tokens: TargetTokens = None,
    body: TargetBody = None,
    header: TargetHeader = None,
    ca: TargetCa = None,
) -> None:
    """Run scenarios, and write the result of each to a JSON file.

    Ctrl-C ends a run at any time and leaves nothing behind. The exit status is 1 when nothing was measured in
    one of the scenarios.
    """
    from headrace_lab.run.cell import Options
    from headrace_lab.run.plan import choose, choose_on_target
    from headrace_lab.scenarios import scenario

    chosen = [scenario.load(name) for name in scenarios]
    chosen = [each.quickened() if quick else each for each in chosen]
    plans: list[tuple[Scenario, list[Stack]]]
    if target:
        if on or server:
            raise ConfigError(
                detail="--target is asked over this machine's own network: leave out --on and --server"
            )
        asked = _target(target, path, model, max_tokens, body, header or [], ca)
        options = Options("loopback", asked)
        chosen = [_with_seeds(asked.scenario(each), seeds or 1) for each in chosen]
        plans = [(each, choose_on_target(each, protocol or [], asked.url)) for each in chosen]
    else:
        options = Options(_where(on or "link"))
        only = ["http3"] if on == "relay" else protocol or []
        chosen = [_with_seeds(each, seeds) for each in chosen]
        plans = [(each, choose(each, server or [], only)) for each in chosen]
    _run_all(plans, options, seed, out)


def _with_seeds(scenario: Scenario, seeds: int | None) -> Scenario:
    if not seeds:
        return scenario
    return scenario.model_copy(update={"run": scenario.run.model_copy(update={"seeds": seeds})})


def _where(on: str) -> str:
    """The network that the scenarios are run on. Raises `ConfigError`."""
    from headrace_lab.run.path import ON

    if on not in ON:
        raise ConfigError(detail=f"--on: expected one of {', '.join(ON)}; got {on!r}")
    if on == "link" and os.geteuid() != 0:
        raise ConfigError(
            detail="the link is made of network namespaces, which needs root: run it with sudo, "
            "or with --on relay (HTTP/3 alone) or --on loopback (no delay, no loss)"
        )
    return on


def _target(
    url: str,
    path: str,
    model: str,
    max_tokens: int | None,
    body: str | None,
    header: list[str],
    ca: Path | None,
) -> Target:
    """The server to ask, from what the command line says of it. Raises `ConfigError`."""
    from headrace_lab.run.target import Target

    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            detail=f"--target: expected a URL that begins with http:// or https://; got {url!r}"
        )
    if ca is not None and not ca.is_file():
        raise ConfigError(detail=f"--ca: there is no file {ca}")
    more = _json_object(body) if body else {}
    fields = tuple(_field(text) for text in header)
    # The clients run in a folder of their own.
    return Target(url.rstrip("/"), path, model, fields, more, max_tokens, ca.absolute() if ca else None)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(detail=f"--body: expected a JSON object; {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(detail="--body: expected a JSON object")
    return value


def _field(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise ConfigError(detail="--header: expected 'name: value'; there is no colon in what was given")
    return name.strip().lower(), value.strip()


def _run_all(plans: list[tuple[Scenario, list[Stack]]], options: Options, first_seed: int, out: Path) -> None:
    from rich.console import Console

    from headrace_lab import process
    from headrace_lab.report.compare import is_empty
    from headrace_lab.report.page import finding
    from headrace_lab.run import progress
    from headrace_lab.run.plan import cells

    console, empty = Console(), []
    try:
        with process.interruptible():
            for scenario, stacks in plans:
                plan = cells(scenario, first_seed, stacks)
                if options.target:
                    print(options.target.cost(scenario, len(plan)), file=sys.stderr)
                result = _run_one(scenario, plan, options, out, progress.watcher(console))
                print(finding(result))
                if is_empty(result):
                    empty.append(scenario.name)
    except KeyboardInterrupt:
        print("stopped; everything that was started has ended", file=sys.stderr)
        raise typer.Exit(130) from None
    _fail_if_empty(empty)


def _run_one(scenario: Scenario, plan: Any, options: Options, out: Path, watcher: Any) -> dict[str, Any]:
    """Runs one scenario; what it has so far is on disk after each cell. Returns the result."""
    from headrace_lab.run import results
    from headrace_lab.run.perform import perform

    made: list[dict[str, Any]] = []
    command = results.command_of(sys.argv[1:])
    with watcher:
        for cell in perform(scenario, plan, options, watcher):
            made.append(cell)
            result = results.whole(scenario, made, command)
            file = results.write(out, result)
    print(f"-> {file}")
    return result


def _fail_if_empty(names: list[str]) -> None:
    if names:
        print(f"headrace: nothing was measured in {', '.join(names)}", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def report(
    folder: Folder = RESULTS,
    out: Annotated[Path | None, typer.Option(help="The page. [default: FOLDER/report.html]")] = None,
) -> None:
    """Make a page with plots (HTML that needs nothing else) and a summary (Markdown) of all results in a
    folder.

    The exit status is 1 when a result is empty: the page says why.
    """
    from headrace_lab.report.page import write

    page, summary, empty = write(folder, out or folder / "report.html")
    print(f"-> {page}\n-> {summary}")
    _fail_if_empty(empty)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="A result file.")],
    after: Annotated[Path, typer.Argument(help="Another result file of the same scenario.")],
) -> None:
    """Compare two results of a scenario, seed by seed, and say what changed beyond the noise."""
    from headrace_lab.report.compare import as_text

    print(as_text(before, after))
