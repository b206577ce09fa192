"""The scripted model server as a process: `python -m headrace_lab.model --port 0`.

It prints its address as one JSON line and lives until its standard input is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from headrace_lab import model
from headrace_lab.model.script import Script, parse
from headrace_lab.model.source import Source


async def _main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m headrace_lab.model",
        description=model.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=parse, default=Script(), help="JSON of the default script")
    parser.add_argument("--record", type=Path, help="where to write what `GET /runs` answers, at the end")
    options = parser.parse_args(arguments)
    source = Source(default=options.script, host=options.host, port=options.port)
    async with source:
        print(json.dumps({"url": source.url}), flush=True)
        # It lives as long as the process that started it.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        if options.record:
            options.record.write_text(json.dumps(source.record()))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
