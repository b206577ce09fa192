"""The link for users without root: a UDP port before a server, on loopback. It carries HTTP/3 alone.

    with Relay("wifi-bad", server=("127.0.0.1", 4433), seed=1) as relay:
        ...connect to relay.address...
        relay.command({"do": "rebind_port"})
        relay.result()

In: a profile, a seed, a server. Out: the same verdicts as `headrace_lab.link`'s, for datagrams. What it
cannot do: TCP, so nothing can be compared with HTTP/2; another address (`rebind_address` gives another port,
`move` is refused); ECN; real-time priority where the kernel does not grant it, so a busy machine makes a run
void. Its results say so: `mode` is "udp relay (HTTP/3 only)".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace_lab.link.emulator import Emulator
from headrace_lab.link.profiles import Profile

MAX_FLOWS = 512
"""The most clients at a time, with those that a rebinding left behind: each has a descriptor."""


class Relay(Emulator):
    """A UDP port that reaches a server over the emulated network."""

    mode = "udp relay (HTTP/3 only)"

    def __init__(
        self,
        profile: Profile | str | dict[str, Any],
        server: tuple[str, int],
        seed: int = 1,
        log: Path | str | None = None,
        port: int = 0,
    ) -> None:
        """`server`: an IP address and a port. `port`: where to listen on loopback; 0: any. Raises
        `ConfigError`."""
        super().__init__(profile, seed, log)
        self.server = server
        self.port = port

    @property
    def address(self) -> tuple[str, int]:
        """The address that clients connect to."""
        host, port = self.ready["address"]
        return host, port

    def _config(self) -> dict[str, Any]:
        host, port = self.server
        is_ipv6 = ":" in host
        wire = {
            "kind": "udp",
            "listen": f"[::1]:{self.port}" if is_ipv6 else f"127.0.0.1:{self.port}",
            "server": f"[{host}]:{port}" if is_ipv6 else f"{host}:{port}",
            "max_flows": MAX_FLOWS,
        }
        return {"engine": {"wire": wire}, "namespaces": None}

    def __repr__(self) -> str:
        return f"<Relay {self.profile.name} seed {self.seed} to {self.server}>"
