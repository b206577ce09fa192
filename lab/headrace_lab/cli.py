"""`headrace lab`: what each protocol does to a stream of tokens, measured and drawn."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace_lab.run.cell import Options

app = typer.Typer(
    no_args_is_help=True,
    help="Measure what a link does to token streams, over each protocol, for any server.",
)

RESULTS = Path("lab-results")
Folder = Annotated[Path, typer.Argument(help="Where the results are.")]
Target = Annotated[
    str | None, typer.Option(help="URL of any server, measured over this machine's own network, no link.")
]
TargetPath = Annotated[str, typer.Option(help="With --target: the path that is asked.")]
TargetModel = Annotated[str | None, typer.Option(help="With --target: the model that is asked for.")]
TargetHeader = Annotated[
    list[str] | None, typer.Option(help="With --target: a further field, e.g. 'authorization: Bearer ...'.")
]
TargetCa = Annotated[
    Path | None, typer.Option(help="With --target: whom to trust (PEM). [nobody is checked]")
]


@app.command("list")
def list_() -> None:
    """The scenarios that come with headrace."""
    from headrace_lab.scenarios import scenario

    for name in scenario.shipped():
        of = scenario.load(name)
        print(f"{name:15} {of.title}")


@app.command()
def run(
    scenarios: Annotated[
        list[str], typer.Argument(help="Names (`headrace lab list`) or paths of .toml files.")
    ],
    quick: Annotated[
        bool, typer.Option(help="Fewer seeds, points and tokens: to see whether it works.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The first seed: the same seed loses the same packets.")] = 1,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many. [the scenario's]")] = None,
    server: Annotated[
        list[str] | None, typer.Option(help="Only this server; may be given more than once.")
    ] = None,
    protocol: Annotated[
        list[str] | None, typer.Option(help="Only http1, http2 or http3; may be given more than once.")
    ] = None,
    target: Target = None,
    path: TargetPath = "/v1/chat/completions",
    model: TargetModel = None,
    header: TargetHeader = None,
    ca: TargetCa = None,
    on: Annotated[
        str,
        typer.Option(help="`link` (needs root), `relay` (HTTP/3 alone), or `loopback`: no delay, no loss."),
    ] = "link",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """Run scenarios; each one's result is a JSON file. Ctrl-C ends it and leaves nothing behind."""
    from rich.console import Console

    from headrace_lab import process
    from headrace_lab.run import run as runs
    from headrace_lab.run import view
    from headrace_lab.scenarios import scenario

    on = _where(on, target)
    options = _options(on, target, path, model, header, ca)
    chosen = [scenario.load(name) for name in scenarios]
    console = Console()
    try:
        with process.interruptible():
            for of in chosen:
                of = of.quickened() if quick else of
                if seeds:
                    of = of.model_copy(update={"run": of.run.model_copy(update={"seeds": seeds})})
                only = ["http3"] if on == "relay" else protocol or []
                stacks = runs.choose(of, server or [], only, target)
                _run_one(of, runs.cells(of, seed, stacks), options, out, view.watcher(console))
    except KeyboardInterrupt:
        print("stopped; everything that was started has ended", file=sys.stderr)
        raise typer.Exit(130) from None


def _where(on: str, target: str | None) -> str:
    """On what the scenarios are run. Raises `ConfigError`."""
    from headrace_lab.run.path import ON

    if on not in ON:
        raise ConfigError(detail=f"--on: expected one of {', '.join(ON)}; got {on!r}")
    if target:
        return "loopback"
    if on == "link" and os.geteuid() != 0:
        raise ConfigError(
            detail="the link is made of network namespaces, which needs root: run it with sudo, "
            "or with --on relay (HTTP/3 alone) or --on loopback (no delay, no loss)"
        )
    return on


def _options(
    on: str,
    target: str | None,
    path: str,
    model: str | None,
    header: list[str] | None,
    ca: Path | None,
) -> Options:
    from headrace_lab.run.cell import Options

    request = {"model": model or "", "messages": [{"role": "user", "content": "Write a long story."}]}
    return Options(
        on=on,
        target=target.rstrip("/") if target else None,
        target_path=path,
        target_fields=tuple(_field(text) for text in header or []),
        request=request if target else None,
        ca=ca,
    )


def _run_one(of: Any, plan: Any, options: Any, out: Path, watcher: Any) -> None:
    from headrace_lab.run import run as runs

    results: list[dict[str, Any]] = []
    command = "headrace " + " ".join(sys.argv[1:])
    with watcher:
        for result in runs.perform(of, plan, options, watcher):
            results.append(result)
            file = runs.write(out, runs.whole(of, results, command))
    print(f"-> {file}")


def _field(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise ConfigError(detail=f"--header: expected 'name: value'; got {text!r}")
    return name.strip().lower(), value.strip()


@app.command()
def report(
    folder: Folder = RESULTS,
    out: Annotated[Path | None, typer.Option(help="The page. [FOLDER/report.html]")] = None,
) -> None:
    """Make one page with plots (HTML that needs nothing else) and a summary (Markdown) of all results."""
    from headrace_lab.report.page import write

    page, summary = write(folder, out or folder / "report.html")
    print(f"-> {page}\n-> {summary}")


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="A result file.")],
    after: Annotated[Path, typer.Argument(help="Another of the same scenario.")],
) -> None:
    """Compare two results of a scenario, seed by seed: what changed beyond the noise."""
    from headrace_lab.report.compare import as_text

    print(as_text(before, after))
