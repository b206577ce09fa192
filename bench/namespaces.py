"""Two network namespaces for a benchmark: one for the client, one for the server. Needs root."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

CLONE_NEWNET = 0x40000000
CLIENT, SERVER = "headrace-client", "headrace-server"


def need_root(parser: argparse.ArgumentParser) -> None:
    if os.geteuid():
        parser.exit(1, f"{parser.prog} makes network namespaces, which needs root: run it with sudo\n")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextlib.contextmanager
def namespaces(links: dict[str, tuple[str, str]]) -> Iterator[None]:
    """`links`: name of each veth pair, and the client's and the server's address on it, each with a prefix
    length. All is gone afterwards, whatever happens."""
    made = []
    try:
        for name in (CLIENT, SERVER):
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        for link, addresses in links.items():
            ip("link", "add", link, "netns", CLIENT, "type", "veth", "peer", "name", link, "netns", SERVER)
            for name, address in zip((CLIENT, SERVER), addresses, strict=True):
                ip("-n", name, "addr", "add", address, "dev", link)
                ip("-n", name, "link", "set", link, "up")
        yield
    finally:
        for name in made:
            ip("netns", "del", name)


def enter(namespace: str) -> None:
    """Moves the calling thread, and what it starts, to a namespace (`os.setns` is there from Python 3.12
    on)."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
