"""A model server that takes no time: the same short answer to every request, as soon as it has been read.

    python -m bench.network.instant_model

For `bench.network.first_token`, in which the model's own time is not what is asked for: the scripted one
reads its script, keeps a record, and takes a quarter of a millisecond. Here a thread for each connection
sleeps in `recv`. Prints its address as one JSON line and lives until its standard input is closed, as
`headrace_lab.model.source` does."""

from __future__ import annotations

import json
import re
import socketserver
import sys
import threading

from headrace_lab.model.script import Script, event


def answer(content_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


MODELS = answer("application/json", json.dumps({"object": "list", "data": [{"id": "x"}]}).encode())
TOKEN = answer("text/event-stream", event(Script(events=1), 0, 0) + b"data: [DONE]\n\n")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        buffer = b""
        while more := self.request.recv(65536):
            head, end, body = (buffer := buffer + more).partition(b"\r\n\r\n")
            length = LENGTH.search(head)
            if end and len(body) >= (int(length[1]) if length else 0):
                self.request.sendall(MODELS if head.startswith(b"GET ") else TOKEN)
                buffer = b""


class Model(socketserver.ThreadingTCPServer):
    daemon_threads = True


def main() -> None:
    with Model(("127.0.0.1", 0), Connection) as model:
        threading.Thread(target=model.serve_forever, daemon=True).start()
        print(json.dumps({"url": f"http://127.0.0.1:{model.server_address[1]}"}), flush=True)
        sys.stdin.read()
        model.shutdown()


if __name__ == "__main__":
    main()
