"""Writes the pages that are made from code: `python docs/generate.py`. A test fails when they differ."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent


def configuration() -> str:
    from headrace.cli.config import commented_toml

    return (
        "# Configuration\n\n"
        "Every setting, as `headrace config` prints it: its reason, and below it the default.\n"
        "The environment has each as `HEADRACE_SECTION__KEY`; the commonest are flags of `headrace serve`.\n"
        "A name ends with its unit: `_bytes`, `_s` (seconds), `_ms`.\n\n"
        f"```toml\n{commented_toml()}```\n"
    )


def errors() -> str:
    from headrace.errors import CLASSES, kinds
    from headrace.gateway.answers import REFUSALS

    lines = [
        "# Errors",
        "",
        "Every error has a kind. Its slug is the `code` of a JSON error and never changes; its class is in",
        "`headrace.errors`. *Status* is what a client is answered with while no head was sent, *HTTP/3 code*",
        "the reset of its stream after that (RFC 9114 §8.1). *Retry*: the same request may succeed elsewhere",
        "or later.",
        "",
        "| slug | whose | class | status | HTTP/3 code | retry | meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in kinds().values():
        retry = "yes" if kind.retryable else "no"
        name = CLASSES[kind.slug].__name__
        cells = [f"`{kind.slug}`", kind.side, f"`{name}`", kind.status, f"{kind.h3_code:#x}", retry]
        lines.append(f"| {' | '.join(map(str, cells))} | {kind.sentence} |")
    lines += [
        "",
        "The gateway (`headrace serve`) refuses some requests itself, with a code that is no kind:",
        "",
        "| code | status | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{code}` | {status} | {meaning} |" for code, (status, meaning) in REFUSALS.items()]
    return "\n".join(lines) + "\n"


PAGES = {"configuration.md": configuration, "errors.md": errors}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())
