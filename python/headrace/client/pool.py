"""The client's HTTP/3 connections, by origin, and when TCP is the better way.

In: origins. Out: a connection to make a request on, which is there already or is being reached; or `None`,
when the request should take TCP. The pool decides at once and waits for nothing: a request waits for its
connection, for as long as the lease says. All threads and loops of a process may share one pool.

A network that drops UDP costs one wait of `race_delay`, once. The attempt goes on in the background, and
requests take TCP at once meanwhile. After an attempt has failed, the next one is made later, in the
background too: after 1 minute, then 2, 4, and so on up to an hour.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headrace import _engine, errors
from headrace.client.alt_svc import AltSvcCache
from headrace.client.origin import Origin

Http3 = Literal["race", "alt-svc", "only"]
"""When HTTP/3 is tried: for every origin, with TCP after a short delay (`race`); for an origin that has said
that it speaks HTTP/3 (`alt-svc`, RFC 7838); or always, and never TCP (`only`)."""

FIRST_PAUSE_S = 60.0
MAX_PAUSE_S = 3600.0
MOST_DOUBLINGS = 10
FRESH_S = 1.0
"""Where there is nothing but HTTP/3, an attempt that is older than this is begun anew for the next
request."""
MAX_SITES = 1000
"""When there are more, origins without a connection are forgotten."""


class Lease(NamedTuple):
    """A connection for one request."""

    connection: _engine.Connection
    is_open: bool
    """The connection is there, and need not be waited for."""
    wait: float | None
    """The seconds to wait for it; after that comes TCP, or an error."""


@dataclass
class _Site:
    """What is known of one origin."""

    connections: list[_engine.Connection] = field(default_factory=list)
    attempt: _engine.Connection | None = None
    attempt_at: float = 0.0
    failures: int = 0
    pause_until: float = 0.0


class Pool:
    """`connect`: begins a connection to a host and a port, whose certificate must have the name that is
    third."""

    def __init__(
        self,
        connect: Callable[[str, int, str], _engine.Connection],
        http3: Http3 = "race",
        max_connections: int = 1,
        race_delay: float = 0.25,
        alt_svc: AltSvcCache | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.http3 = http3
        self.alt_svc = alt_svc or AltSvcCache()
        self._connect = connect
        self._max_connections = max_connections
        self._race_delay = race_delay
        self._clock = clock
        self._lock = threading.Lock()
        self._sites: dict[Origin, _Site] = {}
        self._is_closed = False
        self._process = os.getpid()

    @property
    def may_use_tcp(self) -> bool:
        return self.http3 != "only"

    def take(self, origin: Origin, connect_timeout: float | None, is_patient: bool = False) -> Lease | None:
        """A connection for a request, or `None` when it should take TCP. `is_patient`: TCP has failed, so an
        attempt that is under way is worth the whole `connect_timeout`.

        Raises `ClosedError` after `close()`, `UsageError` after a fork.
        """
        self._check_process()
        with self._lock:
            site = self._site(origin)
            if best := self._best(site):
                if self._wants_one_more(site, best):
                    self._begin(origin, site)
                return Lease(best, is_open=True, wait=None)
            if is_patient and site.attempt:
                return Lease(site.attempt, is_open=False, wait=connect_timeout)
            return self._reach(origin, site, connect_timeout)

    def prewarm(self, origin: Origin) -> _engine.Connection:
        """The connection to an origin; it is begun when there is none. Raises `ClosedError` after
        `close()`."""
        self._check_process()
        with self._lock:
            site = self._site(origin)
            return self._best(site) or site.attempt or self._begin(origin, site)

    def __repr__(self) -> str:
        with self._lock:
            count = sum(len(site.connections) for site in self._sites.values())
        return f"<Pool http3={self.http3}, {count} connections>"

    def migrate(self) -> None:
        """Moves every open connection to a new socket."""
        self._check_process()
        with self._lock:
            connections = [each for site in self._sites.values() for each in site.connections if each.is_open]
        for connection in connections:
            connection.migrate()

    def close(self) -> None:
        """Closes all connections. Streams on them end with an error."""
        if self._process != os.getpid():
            return  # The connections are the parent's.
        with self._lock:
            self._is_closed = True
            for site in self._sites.values():
                for connection in [*site.connections, *filter(None, [site.attempt])]:
                    connection.close()
            self._sites.clear()

    def _check_process(self) -> None:
        """Must come before anything else: another thread may have held a lock when the process was forked."""
        if self._process != os.getpid():
            raise errors.make("misuse", "the process was forked; make a new client in the child")

    def _site(self, origin: Origin) -> _Site:
        if self._is_closed:
            raise errors.make("closed", "the client has been closed")
        if len(self._sites) >= MAX_SITES and origin not in self._sites:
            used = {at: site for at, site in self._sites.items() if site.connections or site.attempt}
            self._sites = used
        site = self._sites.setdefault(origin, _Site())
        self._note_attempt(site)
        return site

    def _note_attempt(self, site: _Site) -> None:
        """Notes what has become of the attempt, and forgets connections that can no longer be used."""
        site.connections = [connection for connection in site.connections if connection.is_usable]
        attempt = site.attempt
        if attempt and attempt.is_open:
            site.attempt, site.failures, site.pause_until = None, 0, 0.0
            site.connections.append(attempt)
        elif attempt and not attempt.is_usable:
            site.attempt = None
            pause = FIRST_PAUSE_S * 2 ** min(site.failures, MOST_DOUBLINGS)
            site.failures += 1
            site.pause_until = self._clock() + min(pause, MAX_PAUSE_S)

    def _best(self, site: _Site) -> _engine.Connection | None:
        """The connection on which the fewest streams wait, and of those the one with the fewest streams."""
        return min(site.connections, key=lambda each: (each.waiting, each.streams), default=None)

    def _wants_one_more(self, site: _Site, best: _engine.Connection) -> bool:
        is_full = best.waiting > 0
        return is_full and site.attempt is None and len(site.connections) < self._max_connections

    def _reach(self, origin: Origin, site: _Site, connect_timeout: float | None) -> Lease | None:
        now = self._clock()
        if not self.may_use_tcp:
            # QUIC sends its first packet less and less often, so that a server which has just come up would
            # have to wait for the next one.
            is_fresh = now - site.attempt_at < FRESH_S
            attempt = site.attempt if site.attempt and is_fresh else self._begin(origin, site)
            return Lease(attempt, is_open=False, wait=connect_timeout)
        if self.http3 == "alt-svc" and not self.alt_svc.find(origin):
            return None
        if site.attempt is None:
            if now < site.pause_until:
                return None
            connection = self._begin(origin, site)
            if site.failures:
                return None  # It is a probe, and no request waits for it.
        else:
            connection = site.attempt
        left = site.attempt_at + self._race_delay - now
        if left <= 0:
            return None
        return Lease(
            connection, is_open=False, wait=left if connect_timeout is None else min(left, connect_timeout)
        )

    def _begin(self, origin: Origin, site: _Site) -> _engine.Connection:
        host, port = self.alt_svc.find(origin) or origin
        site.attempt = self._connect(host, port, origin.host)
        site.attempt_at = self._clock()
        return site.attempt
