"""What a link and a relay share: the emulator's process, its commands and its result.

In: a profile, a seed, commands. Out: answers, and a result that says when it does not count. The emulator
has a process of its own, so that nothing that Python does delays a packet.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.errors import ConfigError
from headrace_lab.link import commands
from headrace_lab.link.profiles import Profile

MAX_LATENESS_P99_MS = 0.5
"""A run is void above this: it is 2.5 % of a round trip of 20 ms."""
MAX_LOG_PACKETS = 5_000_000
"""They take 200 MB."""
MAX_HELD_PACKETS = 65_536
"""More than 1 Gbit/s needs over a round trip of one second."""
MAX_EVENTS = 10_000
"""The most commands that a result lists."""
END_S = 20.0


class Emulator:
    """A running emulator, as a context manager. `Link` and `Relay` are the two kinds."""

    mode = ""

    def __init__(
        self, profile: Profile | str | dict[str, Any], seed: int = 1, log: Path | str | None = None
    ) -> None:
        self.profile = Profile.of(profile)
        self.seed = seed
        self._log = Path(log) if log else None
        self._is_log_ours = log is None
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._asked = 0
        self._report: dict[str, Any] | None = None
        self._script = self.profile.script
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._cpu_at_start: list[int] = []
        self.ready: dict[str, Any] = {}
        """What the process said when it was ready."""

    def _config(self) -> dict[str, Any]:
        """Returns what the process is told besides what both kinds share."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        config = self._config()
        self._cpu_at_start = cpu_times()
        if self._log is None:
            folder = tempfile.mkdtemp(prefix="headrace-link-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._log = Path(folder) / "packets.log"
        config["engine"] |= {
            "seed": self.seed,
            "up": self.profile.plan("up"),
            "down": self.profile.plan("down"),
            "script": [commands.step(step, Profile.plans) for step in self._script],
            "log": str(self._log.absolute()),
            "max_log_packets": MAX_LOG_PACKETS,
            "max_held_packets": MAX_HELD_PACKETS,
        }
        config["log_is_temporary"] = self._is_log_ours
        # The process has a session of its own: Ctrl-C reaches us alone, and the end of its input ends it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace_lab.link.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self.ready = self._ask(config)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def command(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carries out a command (`headrace_lab.link.commands`). The answer holds `at_ns`, the moment at
        which the command took effect (`time.monotonic_ns()`). Raises `ConfigError`."""
        answer = self._ask(commands.translate(command, Profile.plans))
        if command["do"] == "status":
            return {"at_ns": answer["at_ns"], **self._shown(answer["report"])}
        if command["do"] == "profile":
            self.profile = Profile.of(command["profile"])
        self._events.append({"at_ns": answer["at_ns"], **_plain(command)})
        return answer

    def result(self) -> dict[str, Any]:
        """Returns counts and lateness until now, or until the end, as values for JSON:

        - `void`: whether the run does not count; `void_because`: the reasons;
        - `lateness_ms`: `p50`, `p99`, `max`, `packets`: how long after it was due each packet was out;
        - `up`, `down`: `in`, `out`, their bytes, `copies`, and `dropped` by the verdicts of
          `headrace_lab.link.log`;
        - `device_drops`: empty, or what the devices dropped; `steal`: the share of CPU time that the
          machine's host took; `realtime`: whether the kernel granted priority and locked memory;
          `awake`: whether it kept the processors from sleeping;
        - `events`: commands and steps of the script, each with the moment at which it took effect;
        - `log`: path of the packet log (`headrace_lab.link.log` reads it), complete up to now. It lives as
          long as this object, unless its path was given.
        """
        return self._shown(self._report or self._ask({"do": "status"})["report"])

    def _shown(self, report: dict[str, Any]) -> dict[str, Any]:
        because = []
        if report["lateness_ms"]["p99"] > MAX_LATENESS_P99_MS:
            late = report["lateness_ms"]["p99"]
            because.append(f"the emulator's p99 lateness was {late:.2f} ms, over {MAX_LATENESS_P99_MS} ms")
        if report["socket_drops"]:
            because.append(f"a socket of the emulator's dropped {report['socket_drops']} packets")
        if report["log_error"]:
            because.append(f"the packet log could not be written: {report['log_error']}")
        for name, count in report["device_drops"].items():
            because.append(f"a device dropped {count} packets ({name})")
        for side in ("up", "down"):
            if report[side]["dropped"]["overflow"]:
                because.append(f"more than {MAX_HELD_PACKETS} packets were on their way ({side})")
            if report[side]["refused"]:
                because.append(f"the far end did not take {report[side]['refused']} packets ({side})")
        steps = [{"at_ns": at_ns, **_plain(self._script[step])} for step, at_ns in report["steps"]]
        return {
            "mode": self.mode,
            "profile": self.profile.as_dict(),
            "seed": self.seed,
            **{name: value for name, value in report.items() if name != "steps"},
            "events": sorted([*self._events, *steps], key=lambda event: event["at_ns"]),
            "realtime": not report["not_granted"],
            "steal": stolen_share(self._cpu_at_start, cpu_times()),
            "void": bool(because),
            "void_because": because,
            "log": str(self._log),
        }

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            process = self._process
            if process is None or process.stdin is None or process.stdout is None:
                raise ConfigError(detail="the link does not run: use it within its `with`")
            self._asked += 1
            answer: dict[str, Any] = {}
            try:
                process.stdin.write(json.dumps({**message, "id": self._asked}) + "\n")
                process.stdin.flush()
                # Ctrl-C may have left the answer to the command before.
                while answer.get("id") != self._asked:
                    answer = json.loads(process.stdout.readline())
            except (BrokenPipeError, ValueError):
                raise ConfigError(detail="the link's process has ended") from None
        del answer["id"]
        if "error" in answer:
            raise ConfigError(detail=answer["error"])
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            # The last thing that it says is its report. The end of its input ends it in any case.
            said, _ = process.communicate('{"do": "end", "id": 0}\n', timeout=END_S)
            for line in said.splitlines():
                self._report = json.loads(line).get("report", self._report)
        except (subprocess.TimeoutExpired, ValueError):
            process.kill()
        finally:
            # This is done when Ctrl-C comes meanwhile, too.
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe:
                        pipe.close()
            process.wait()


def _plain(command: dict[str, Any]) -> dict[str, Any]:
    """Returns a command as a value for JSON."""
    return (
        {**command, "profile": Profile.of(command["profile"]).as_dict()} if "profile" in command else command
    )


def cpu_times() -> list[int]:
    """Reads the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, in ticks."""
    return [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def stolen_share(before: list[int], after: list[int]) -> float:
    """Returns the share of all CPU time between two readings that went to other guests of the host."""
    spent = [b - a for a, b in zip(before, after, strict=True)]
    return spent[7] / max(1, sum(spent))
