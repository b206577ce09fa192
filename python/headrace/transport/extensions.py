"""What a response over HTTP/3 tells beside its head: the entries of `response.extensions`.

In: an answer that has started. Out: what the transport knows of it, asked for when it is read.
"""

from __future__ import annotations

from typing import Any, cast

from headrace import _engine
from headrace.client.request import Started


class Stats:
    """`response.extensions["headrace"]`: what the transport knows of an answer."""

    protocol = "HTTP/3"

    def __init__(self, started: Started) -> None:
        self._started = started
        self.is_connection_reused = started.is_reused

    @property
    def is_early_data(self) -> bool:
        """Whether the request was sent in early data (0-RTT), and the server took it."""
        return self._started.stream.early_data

    @property
    def arrivals(self) -> list[tuple[int, int]]:
        """When each DATA frame came (`time.monotonic_ns()`), and its size in bytes: at most the first 65,536.

        From a headrace gateway, one frame is one event.
        """
        return self._started.stream.arrivals()

    @property
    def path(self) -> dict[str, float]:
        """What is known of the connection: `rtt` (seconds), `congestion_window` (bytes), `lost_packets`,
        `path_changes`, `sent_packets`, `sent_bytes`, `received_datagrams` and `received_bytes`; and of our
        echo `echo_copies`, `echo_copied_bytes`, `echo_repaired` and `echo_doubtful`."""
        return cast("dict[str, float]", self._started.connection.stats() or {})

    def __repr__(self) -> str:
        return f"<Stats {self.protocol} {self._started.connection!r}>"


class NetworkStream:
    """`response.extensions["network_stream"]`: it knows the addresses, and cannot be read or written."""

    def __init__(self, connection: _engine.Connection) -> None:
        self._connection = connection

    def get_extra_info(self, info: str) -> Any:
        """`client_addr` and `server_addr` are a host and a port; everything else is `None`."""
        ours, server = self._connection.addresses or (None, None)
        return {"client_addr": ours, "server_addr": server}.get(info)
