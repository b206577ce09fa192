"""The process of the local model: loads it, prints its address, and lives until standard input is closed.

Started by `headrace.local.model`; in: one JSON argument; out: one JSON line with the address.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    # Ctrl-C reaches every process of the terminal; the gateway decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    options = json.loads(sys.argv[1])
    # llama.cpp writes to standard output, too: our one line must have it alone.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    import xllamacpp  # type: ignore[import-not-found, import-untyped, unused-ignore]

    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.model_alias = {options["name"]}
    params.port = 0
    params.n_parallel = options["parallel"]
    params.n_ctx = options["context"] * options["parallel"]
    params.endpoint_slots = True
    params.hostnames = ["127.0.0.1"]
    params.ui = False
    params.cpuparams.n_threads = options["threads"]
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), file=out, flush=True)
    sys.stdin.read()
    # Its own shutdown waits for running answers; nobody is left to read them.
    os._exit(0)


if __name__ == "__main__":
    main()
