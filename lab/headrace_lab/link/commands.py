"""What a link can be told while it runs.

In: a command as people write it, `{"do": "outage", "seconds": 2}`. Out: the command as the emulator reads
it, with every field, in the emulator's units. What is not in the table does not exist.

| `do` | fields (default) | what happens |
|---|---|---|
| `profile` | `profile`: a `Profile`, its name, or its fields | another network, from now on |
| `loss` | `loss`, `burst` (1), `direction` (both) | another loss |
| `drop` | `count` (1), `direction` (both) | the next packets are dropped |
| `outage` | `seconds`, `held` (false), `direction` (both) | nothing passes; `held`: it waits for the end |
| `mtu` | `mtu` (0: no bound), `direction` (both) | longer packets vanish |
| `block_udp` | `blocked` (true) | no UDP |
| `rebind_port` | | the NAT forgets: every flow has a new port, and what the server sends to the old is lost |
| `rebind_address` | | the same with a new address |
| `move` | `cut` (false) | the client's routes change to its other address; `cut`: the old one is removed |
| `restart` | | packet indices, script, trace and pauses begin again, for a measurement after a warm-up |
| `status` | | counts, and the packet log written up to now |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import ConfigError


def _seconds(value: float) -> int:
    return round(value * 1_000_000_000)


def _same(value: Any) -> Any:
    return value


_Field = tuple[str, Callable[[Any], bool], str, Callable[[Any], Any]]
"""The field's name for the emulator; whether a value is right; what it must be; the value for the
emulator."""


def is_number(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


_DIRECTION: _Field = ("direction", lambda value: value in ("up", "down", "both"), "up, down or both", _same)
_FLAG: Callable[[Any], bool] = lambda value: isinstance(value, bool)  # noqa: E731
_NEEDED = object()

_COMMANDS: dict[str, dict[str, tuple[Any, _Field]]] = {
    "loss": {
        "loss": (_NEEDED, ("loss", lambda value: is_number(value, 0, 1), "a share between 0 and 1", _same)),
        "burst": (1.0, ("burst", lambda value: is_number(value, 1, 1e6), "1 or more", _same)),
        "direction": ("both", _DIRECTION),
    },
    "drop": {
        "count": (
            1,
            ("count", lambda value: type(value) is int and 0 <= value < 1 << 32, "a whole number", _same),
        ),
        "direction": ("both", _DIRECTION),
    },
    "outage": {
        "seconds": (
            _NEEDED,
            ("length_ns", lambda value: is_number(value, 0, 1e6), "0 or more seconds", _seconds),
        ),
        "held": (False, ("held", _FLAG, "true or false", _same)),
        "direction": ("both", _DIRECTION),
    },
    "mtu": {
        "mtu": (
            _NEEDED,
            (
                "mtu",
                lambda value: type(value) is int and 0 <= value <= 65_535,
                "bytes of an IP packet",
                _same,
            ),
        ),
        "direction": ("both", _DIRECTION),
    },
    "block_udp": {"blocked": (True, ("blocked", _FLAG, "true or false", _same))},
    "rebind_port": {},
    "rebind_address": {},
    "move": {"cut": (False, ("cut", _FLAG, "true or false", _same))},
    "restart": {},
    "status": {},
}


Plans = Callable[[Any], dict[str, Any]]
"""Makes the plans of both directions from a profile, its name or its fields (`Profile.plans`)."""


def translate(command: dict[str, Any], plans: Plans) -> dict[str, Any]:
    """Returns the emulator's form of a command. Raises `ConfigError`, which names the key."""
    name = command.get("do")
    if name == "profile":
        if set(command) != {"do", "profile"}:
            raise ConfigError(detail="the link's command 'profile' needs 'profile', and nothing else")
        return {"do": "plan", **plans(command["profile"])}
    if name not in _COMMANDS:
        known = ", ".join(["profile", *_COMMANDS])
        raise ConfigError(detail=f"a link cannot do {name!r}; it can: {known}")
    known_fields = _COMMANDS[name]
    for key in command:
        if key != "do" and key not in known_fields:
            known = ", ".join(known_fields) or "none"
            raise ConfigError(detail=f"the link's command {name!r} has no field {key!r}; it has: {known}")
    made = {"do": name}
    for key, (default, (to, is_right, what, convert)) in known_fields.items():
        value = command.get(key, default)
        if value is _NEEDED:
            raise ConfigError(detail=f"the link's command {name!r} needs {key!r}: {what}")
        if not is_right(value):
            raise ConfigError(detail=f"{key} = {value!r} of the link's command {name!r} must be {what}")
        made[to] = convert(value)
    return made


_MOMENTS = ("at_s", "before_up", "before_down")


def step(scripted: dict[str, Any], plans: Plans) -> dict[str, Any]:
    """Returns the emulator's form of a step of a script. Raises `ConfigError`."""
    moments = [key for key in _MOMENTS if key in scripted]
    if len(moments) != 1:
        raise ConfigError(
            detail=f"a step of a link's script needs one of {', '.join(_MOMENTS)}, not {scripted!r}"
        )
    key, value = moments[0], scripted[moments[0]]
    command = translate({name: given for name, given in scripted.items() if name != key}, plans)
    if command["do"] in ("move", "restart", "status"):
        raise ConfigError(detail=f"{command['do']!r} cannot stand in a link's script: give it as a command")
    if key == "at_s":
        if not is_number(value, 0, 1e6):
            raise ConfigError(detail=f"at_s = {value!r} of a link's script must be seconds")
        return {"when": {"after_ns": _seconds(value)}, "command": command}
    if type(value) is not int or value < 0:
        raise ConfigError(detail=f"{key} = {value!r} of a link's script must be the index of a packet")
    return {"when": {key.removeprefix("before_"): value}, "command": command}
