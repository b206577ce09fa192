"""The process of the local model: it loads the model, prints its address, and lives until its input is
closed.

In: one JSON argument. Out: one JSON line with the address. `headrace.local.model` starts it.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    # Ctrl-C reaches every process of the terminal, but the gateway decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    options = json.loads(sys.argv[1])
    # llama.cpp writes to standard output, too, which is meant for our one line alone.
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
    # Its own shutdown waits for running answers, and nobody is left to read them.
    os._exit(0)


if __name__ == "__main__":
    main()
