"""Runs the targets against libFuzzer, several at a time: `python tests/fuzz/run.py --seconds 60`.

In: names of targets (all, when none is given). Out: exit status 1 and the input, when a promise was broken.
New inputs are forgotten, unless `--keep` puts the smallest set of them that reaches the same code into the
corpus.

It needs neither cargo-fuzz nor a nightly compiler: coverage counters are a pass of LLVM that the stable one
has, and libFuzzer is built by the crate `libfuzzer-sys` (C++).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
TARGETS = sorted(path.stem for path in (FOLDER / "targets").glob("*.rs"))
BUILD = FOLDER.parent.parent / "target" / "fuzz"
TRIPLE = "x86_64-unknown-linux-gnu"
FOUND = FOLDER / "found"

COVERAGE = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
]

LIMITS = ["-timeout=10", "-rss_limit_mb=1024", "-max_len=4096"]
"""Seconds and memory that one input may take: any parser here takes microseconds, and next to nothing."""


def build() -> None:
    command = ["cargo", "build", "--quiet", "--release", "--features", "libfuzzer", "--target", TRIPLE]
    environment = {**os.environ, "RUSTFLAGS": " ".join(COVERAGE), "CARGO_TARGET_DIR": str(BUILD)}
    subprocess.run(command, cwd=FOLDER, env=environment, check=True)


def binary(target: str) -> str:
    return str(BUILD / TRIPLE / "release" / target)


def fuzz(target: str, seconds: int, keep: bool) -> tuple[str, str, bool]:
    """The target's name, what libFuzzer said, and whether every promise was kept."""
    FOUND.mkdir(exist_ok=True)
    corpus = FOLDER / "corpus" / target
    with tempfile.TemporaryDirectory() as new:
        options = [f"-max_total_time={seconds}", f"-artifact_prefix={FOUND / target}-", *LIMITS]
        result = subprocess.run([binary(target), new, str(corpus), *options], capture_output=True, text=True)
        if keep and result.returncode == 0:
            merge(target, new, corpus)
    return target, result.stderr, result.returncode == 0


def merge(target: str, new: str, corpus: Path) -> None:
    """The smallest set of inputs, of old and new ones, that reaches everything."""
    with tempfile.TemporaryDirectory() as smallest:
        command = [binary(target), "-set_cover_merge=1", smallest, new, str(corpus), *LIMITS]
        subprocess.run(command, capture_output=True, check=True)
        for path in corpus.iterdir():
            path.unlink()
        for path in Path(smallest).iterdir():
            shutil.copy(path, corpus)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("targets", nargs="*", default=TARGETS, help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=60, help="for each target [60]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at one time [one per core]")
    parser.add_argument("--keep", action="store_true", help="put new inputs into the corpus")
    parser.add_argument("--try", dest="input", type=Path, help="only this input, to see what it breaks")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    build()
    if options.input:
        return subprocess.run([binary(options.targets[0]), str(options.input)]).returncode
    is_well = True
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(fuzz, target, options.seconds, options.keep) for target in options.targets]
        for run in runs:
            target, said, is_kept = run.result()
            lines = said.splitlines()
            print(f"{target}: {'no finding' if is_kept else 'FOUND'}; {summary(lines)}", flush=True)
            if not is_kept:
                print("\n".join(lines[-40:]))
                print(f"again: python tests/fuzz/run.py {target} --try tests/fuzz/found/{target}-...")
            is_well &= is_kept
    return 0 if is_well else 1


def summary(lines: list[str]) -> str:
    """How many inputs were tried, and how much code they reached."""
    done = next((line for line in reversed(lines) if line.startswith("Done")), "")
    last = next((line for line in reversed(lines) if " cov: " in line), "")
    reached = last.split(" cov: ")[-1].split(" ")[0] if last else "?"
    return f"{done or 'ended early'}; {reached} places reached"


if __name__ == "__main__":
    sys.exit(main())
