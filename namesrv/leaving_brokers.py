"""What brokers that are gone have left in the table of topics: removed step by step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from triomq.namesrv import routed_queues
from triomq.namesrv.routed_queues import RoutedQueues


@attrs.define(eq=False)
class LeavingBrokers:
    """The names of such brokers. Routes do not show what is gone from the beginning."""

    topics: RoutedQueues
    gone: set[str] = attrs.field(factory=set, init=False)
    """broker names without a process, which may still have topics"""
    _masterless: dict[str, None] = attrs.field(factory=dict, init=False)
    """broker names that have lost their master, and whose topics may still take writes"""
    _calls: int = attrs.field(default=0, init=False)
    """of ``steps``"""

    def __contains__(self, broker_name: str) -> bool:
        return broker_name in self.gone or broker_name in self._masterless

    def __bool__(self) -> bool:
        """Whether ``steps`` has something to do."""
        return bool(self.gone or self._masterless)

    def add(self, gone: Iterable[str], masterless: Iterable[str]) -> None:
        """Add broker names; do at once what one step can do."""
        self.gone.update(gone)
        self._masterless.update(dict.fromkeys(masterless))
        if len(self.topics.by_topic) <= routed_queues.STEP_TOPICS:
            self.finish()

    def finish(self) -> None:
        """Do all steps at once."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Remove the topics of names that are gone, and take the write permission of those without
        a master. A later call does it all, and ends the steps of this one.
        """
        self._calls += 1
        mine = self._calls
        while self.gone:
            names = frozenset(self.gone)
            for step in self.topics.steps():
                self.topics.remove(step, names)
                yield
                if self._calls != mine:
                    return
            self.gone -= names
        while self._masterless:
            name = next(iter(self._masterless))
            for step in self.topics.steps():
                self.topics.wipe(step, name)
                yield
                if self._calls != mine:
                    return
            del self._masterless[name]
