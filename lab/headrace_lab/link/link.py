"""The link between two network namespaces: TCP and UDP alike, IPv4. It needs root and /dev/net/tun.

In: a profile and a seed. Out: `client` and `server`, in which processes are started, and what the emulator
says.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace_lab.link import namespaces
from headrace_lab.link.emulator import Emulator
from headrace_lab.link.namespaces import Namespace
from headrace_lab.link.profiles import Profile

CLIENT_ADDRESSES = ("10.77.0.2", "10.77.0.3")
SERVER_ADDRESS = "10.77.1.2"
NAT_POOL = "10.77.2.1"
"""The first of the addresses that the server sees after an address rebinding."""


class Link(Emulator):
    """Two namespaces, `client` and `server`, and the network between them."""

    mode = "tun"

    def __init__(
        self, profile: Profile | str | dict[str, Any], seed: int = 1, log: Path | str | None = None
    ) -> None:
        super().__init__(profile, seed, log)
        self.client = Namespace("client")
        self.server = Namespace("server")
        self.client_address = CLIENT_ADDRESSES[0]
        self.server_address = SERVER_ADDRESS

    def _config(self) -> dict[str, Any]:
        namespaces.need_root("a link")
        if not os.path.exists("/dev/net/tun"):
            raise ConfigError(detail="a link needs /dev/net/tun: load the kernel's module tun (modprobe tun)")
        names = {
            "client": self.client.name,
            "server": self.server.name,
            "client_addresses": CLIENT_ADDRESSES,
            "server_address": SERVER_ADDRESS,
            "nat_pool": NAT_POOL,
        }
        return {"engine": {}, "namespaces": names}

    def command(self, command: dict[str, Any]) -> dict[str, Any]:
        answer = super().command(command)
        if command["do"] == "move":
            self.client_address = answer["address"]
        return answer

    def _end(self) -> None:
        for namespace in (self.client, self.server):
            namespace.end_processes()
        super()._end()
        # The process has done this itself, unless it was killed.
        for namespace in (self.client, self.server):
            namespaces.remove(namespace.name)

    def __repr__(self) -> str:
        return f"<Link {self.profile.name} seed {self.seed}>"
