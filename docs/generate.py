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
        "Every error has a kind. Its slug never changes; it is the `code` of a JSON error, in the words of",
        "the API that was asked ([dialects.md](dialects.md)). Its class is in",
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


def dialects() -> str:
    from headrace.events.dialects import dialects, error_body

    lines = [
        "# API dialects",
        "",
        "headrace passes any HTTP API through. Of these it also knows the words: where a caller's key is,",
        "which event is the last of an answer (a client that leaves after it had all of it, and its answer",
        "is kept whole for its `Idempotency-Key`), and how an error is told. An API is known by a part of",
        "the path, behind any prefix; the longest part decides. What is known by none is taken for the",
        "first API below that streams in its format: OpenAI's for server-sent events. An API is one row of",
        "`crates/headrace-core/src/events/dialects/mod.rs`.",
        "",
        "| name | its answers are generated at | other paths | keys are in | streams as | its last event |",
        "|---|---|---|---|---|---|",
    ]
    for row in dialects().values():
        ends, others = (", ".join(f"`{part}`" for part in parts) for parts in (row.generates, row.paths))
        keys = ", ".join(
            [f"`{name}`" for name in row.key_fields] + [f"`?{name}=`" for name in row.key_queries]
        )
        cells = [row.name, ends, others, keys, ", ".join(row.formats), "; ".join(row.last)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "A field is compared without regard to case. `authorization` holds a key behind `Bearer`. The first",
        "field is the one in which a model server is given its own key, unless the client used another.",
        "",
        "An error, as each of them is told it (here a 401):",
        "",
        "```",
    ]
    for row in dialects().values():
        path = next(iter(row.generates), next(iter(row.paths), ""))
        body = error_body(path, 401, "invalid_api_key", "the API key is missing or unknown").decode().strip()
        lines.append(f"{row.name}: {body}")
    return "\n".join([*lines, "```"]) + "\n"


PAGES = {"configuration.md": configuration, "dialects.md": dialects, "errors.md": errors}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())
