"""A network that can be broken: two namespaces, or a UDP port, and a process that carries every packet.

    from headrace_lab.link import Link

    with Link("wifi-bad", seed=1) as link:
        server = link.server.popen([...])
        client = link.client.popen([... link.server_address ...])
        link.command({"do": "rebind_port"})
        link.result()

In: a profile and a seed. Out: what both sides meet, a log of every packet, and whether the run counts. This
room must not know what the packets are for.

By hand: `python -m headrace_lab.link --profile wifi-bad` keeps a link until Ctrl-C and takes commands as JSON
lines; `--self-test` measures the emulator against itself.
"""

from headrace_lab.link.link import Link
from headrace_lab.link.profiles import PROFILES, Profile
from headrace_lab.link.relay import Relay

__all__ = ["PROFILES", "Link", "Profile", "Relay"]
