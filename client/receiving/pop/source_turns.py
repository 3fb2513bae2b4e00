"""``SourceTurns``: which broker a receiving consumer asks next. Pure.

A *source* is a topic on one broker. Sources that rang (their broker says that there are messages)
come first, then all others in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import attrs

PAUSE_FIRST, PAUSE_MAX = 0.02, 1.0
"""Seconds before a source is watched again after it rang and had nothing: first, and at most."""


class PopSource(NamedTuple):
    """A topic on one broker."""

    topic: str
    broker_name: str

    @property
    def name(self) -> str:
        """Its name in log lines."""
        return f"pop from {self.topic} {self.broker_name}"


@attrs.define(eq=False)
class SourceTurns:
    """The sources of one consumer."""

    _sources: list[PopSource] = attrs.field(factory=list, init=False)
    """the one whose turn it is comes first"""
    _rang: dict[PopSource, None] = attrs.field(factory=dict, init=False)
    _false_rings: dict[PopSource, int] = attrs.field(factory=dict, init=False)

    @property
    def sources(self) -> list[PopSource]:
        """All sources; the one whose turn it is comes first."""
        return self._sources.copy()

    @property
    def rang(self) -> bool:
        """Whether any source rang and was not asked since."""
        return bool(self._rang)

    def update(self, sources: Iterable[PopSource]) -> None:
        """Use these sources; those known before keep their turn, new ones come first."""
        wanted = dict.fromkeys(sources)
        known = [source for source in self._sources if source in wanted]
        self._sources = [source for source in wanted if source not in known] + known
        for table in (self._rang, self._false_rings):
            for gone in [source for source in table if source not in wanted]:
                del table[gone]

    def order(self) -> list[PopSource]:
        """Return the sources in the order in which they are asked now."""
        rang = [source for source in self._rang if source in self._sources]
        return [*rang, *(source for source in self._sources if source not in self._rang)]

    def ring(self, source: PopSource) -> None:
        """Note that a source has messages."""
        if source in self._sources:
            self._rang[source] = None

    def quiet(self, source: PopSource) -> None:
        """Note that a source was watched and had no messages: its next ring is believed."""
        self._false_rings.pop(source, None)

    def asked(self, source: PopSource, *, found: bool) -> None:
        """Note an answer: the source's next turn comes after all others."""
        rang = source in self._rang
        self._rang.pop(source, None)
        if found:
            self._false_rings.pop(source, None)
        elif rang:
            self._false_rings[source] = self._false_rings.get(source, 0) + 1
        if source in self._sources:
            self._sources.remove(source)
            self._sources.append(source)

    def pause(self, source: PopSource) -> float:
        """Return the seconds before a source is watched again.

        It is not 0 after rings without messages: they were taken by another member, or do not
        match the filter, which brokers do not look at when they ring.
        """
        count = self._false_rings.get(source, 0)
        return min(PAUSE_FIRST * 2 ** min(count - 1, 10), PAUSE_MAX) if count else 0.0
