"""The name servers of this broker: which of them know it, and what each must hear next.

``Registrar`` (``services/registration.py``) has the tasks; whatever changes marks it here.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import trio


@attrs.define(eq=False)
class NameServer:
    """One name server as this broker sees it."""

    address: str
    registered: bool = False
    tried: bool = False
    generation: int = -1
    """Generation of the topics that it knows."""
    pending: set[str] = attrs.field(factory=set)
    """Topics that have changed since it was told."""
    wake: trio.Event = attrs.field(factory=trio.Event)
    progress: trio.Event = attrs.field(factory=trio.Event)
    """Set after each attempt to register, and replaced by a new one."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Around the task that keeps the broker registered there."""
    started: bool = False

    def note_progress(self) -> None:
        """Record an attempt, successful or not. Checkpoint: never."""
        self.tried = True
        progress, self.progress = self.progress, trio.Event()
        progress.set()


class NameServerTable(dict[str, NameServer]):
    """Address -> name server. Checkpoint: never, in any method."""

    @classmethod
    def of(cls, addresses: Iterable[str]) -> NameServerTable:
        """Return a table of name servers that do not know this broker yet."""
        return cls((address, NameServer(address)) for address in addresses)

    def topics_changed(self, topics: list[str]) -> None:
        """Announce these topics to every name server."""
        for server in self.values():
            server.pending.update(topics)
            server.wake.set()

    def announce_again(self) -> None:
        """Register with every name server now."""
        for server in self.values():
            server.wake.set()

    def connection_lost(self, address: str, _reason: str) -> None:
        """Register again at once: a name server forgets a broker whose connection closes."""
        server = self.get(address)
        if server is not None and server.registered:
            server.registered = False
            server.wake.set()
