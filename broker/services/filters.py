"""Filters of groups beside tags: SQL92 expressions, compiled, and kept in consumerFilter.json.

They come with heartbeats. A pull of a push consumer does not carry its expression, so the broker
must know it. A newer version that cannot be compiled removes the older one, and the answer to the
pull says so. A slave learns filters as a master does, from the heartbeats that consumers send to
both. Source: broker/filter/ConsumerFilterManager.java, ConsumerFilterData.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec

from triomq.broker.filters.bloom import BITS, bloom_positions
from triomq.broker.filters.sql92 import compile_filter
from triomq.broker.filters.tokens import FilterInvalid
from triomq.broker.services.persisted import PersistedTable, encode_pretty, load_table
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.bodies.heartbeat import TAG, SubscriptionData
from triomq.remoting.protocol.fastjson import loads

logger = logging.getLogger(__name__)

SAVE_SECONDS = 10.0
SQL92 = "SQL92"
HEARTBEAT_CHARACTERS_MAX = 65_536
"""Length of all new expressions that are compiled for one heartbeat: about 0.1 s."""
CHARACTERS_MAX = 4_194_304
"""Length of all expressions together: about 0.3 GiB when compiled."""
Wanted = Callable[[Mapping[str, str]], bool]


class StoredFilter(msgspec.Struct, rename="camel"):
    """One entry of the file."""

    expression_type: str
    expression: str
    client_version: int = 0
    born_time: int = 0
    dead_time: int = 0


class StoredTopic(msgspec.Struct, rename="camel"):
    group_filter_data: dict[str, StoredFilter] = {}


class StoredFilters(msgspec.Struct, rename="camel"):
    """The file. All other fields that Java writes are computed from these."""

    filter_data_by_topic: dict[str, StoredTopic] = {}


@attrs.frozen
class GroupFilter:
    """One group's filter of one topic.

    ``dead_ms`` is 0 while the group has it; ``version`` is the client's, a time in ms.
    """

    topic: str
    group: str
    expression: str
    version: int
    born_ms: int
    wanted: Wanted = attrs.field(eq=False, repr=False)
    dead_ms: int = 0


def is_filter(expression_type: str | None) -> bool:
    """Return whether a subscription of this type needs more than tags."""
    return bool(expression_type) and expression_type != TAG


def compile_typed(expression_type: str, expression: str) -> Wanted:
    """Compile an expression of a type. Raises: FilterInvalid."""
    if expression_type != SQL92:
        raise FilterInvalid(
            f"there are no filters of the type {expression_type}: TAG and SQL92 are known"
        )
    return compile_filter(expression)


@attrs.define(eq=False)
class ConsumerFilters(PersistedTable):
    """Filters by (topic, group). ``connected`` returns whether a group has members."""

    clock_ms: Callable[[], int]
    keep_dead_ms: int = 86_400_000
    connected: Callable[[str], bool] = attrs.field(default=lambda group: True)
    _filters: dict[tuple[str, str], GroupFilter] = attrs.field(factory=dict)
    _characters: int = 0
    _log: LogLimit = attrs.field(factory=LogLimit)

    def find(self, topic: str, group: str) -> GroupFilter | None:
        return self._filters.get((topic, group))

    def __len__(self) -> int:
        return len(self._filters)

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Take over the subscriptions of a group that are in force.

        Filters of topics that it no longer names are dead from now on.
        """
        named = set()
        room = HEARTBEAT_CHARACTERS_MAX
        for subscription in subscriptions:
            named.add(subscription.topic)
            if is_filter(subscription.expression_type) and subscription.sub_string:
                room -= self._register(group, subscription, room)
        now = self.clock_ms()
        for (topic, owner), known in list(self._filters.items()):
            if owner == group and topic not in named and not known.dead_ms:
                self._put(attrs.evolve(known, dead_ms=now))

    def _register(self, group: str, subscription: SubscriptionData, room: int) -> int:
        """Take over one subscription; return the number of characters compiled for it."""
        topic, expression, version = (
            subscription.topic,
            subscription.sub_string,
            subscription.sub_version,
        )
        known = self._filters.get((topic, group))
        if (
            known is not None
            and known.expression == expression
            and subscription.expression_type == SQL92
        ):
            if known.version != version or known.dead_ms:
                self._put(attrs.evolve(known, version=version, dead_ms=0))
            return 0
        try:
            if len(expression) > min(room, CHARACTERS_MAX - self._characters):
                raise FilterInvalid(
                    "there is no room for it among the expressions of one heartbeat, or of this"
                    " broker"
                )
            wanted = compile_typed(subscription.expression_type, expression)
        except FilterInvalid as error:
            self._log.warning(
                logger,
                "group %s cannot filter topic %s by %.200r: %s",
                group,
                topic,
                expression,
                error,
            )
            self._drop((topic, group))
            return 0
        self._put(GroupFilter(topic, group, expression, version, self.clock_ms(), wanted))
        return len(expression)

    def _drop(self, key: tuple[str, str]) -> None:
        known = self._filters.pop(key, None)
        if known is not None:
            self._characters -= len(known.expression)
            self.touch()

    def expire(self) -> None:
        """Mark filters of groups without members as dead; drop those dead for ``keep_dead_ms``."""
        now = self.clock_ms()
        for key, known in list(self._filters.items()):
            if not known.dead_ms and not self.connected(known.group):
                self._put(attrs.evolve(known, dead_ms=now))
            elif known.dead_ms and now - known.dead_ms >= self.keep_dead_ms:
                self._drop(key)

    def _put(self, made: GroupFilter) -> None:
        before = self._filters.get((made.topic, made.group))
        self._characters += len(made.expression) - (
            len(before.expression) if before is not None else 0
        )
        self._filters[made.topic, made.group] = made
        self.touch()

    def encode(self) -> bytes:
        """Return the file's content."""
        by_topic: dict[str, Any] = {}
        for _, known in sorted(self._filters.items()):
            groups = by_topic.setdefault(
                known.topic, {"groupFilterData": {}, "topic": known.topic}
            )["groupFilterData"]
            groups[known.group] = {
                "bloomFilterData": {
                    "bitNum": BITS,
                    "bitPos": bloom_positions(f"{known.group}#{known.topic}"),
                },
                "bornTime": known.born_ms,
                "clientVersion": known.version,
                "consumerGroup": known.group,
                "dead": bool(known.dead_ms),
                "deadTime": known.dead_ms,
                "expression": known.expression,
                "expressionType": SQL92,
                "topic": known.topic,
            }
        return encode_pretty({"filterDataByTopic": by_topic}, depth=4)

    def load(self, stored: StoredFilters) -> None:
        """Take over the file's filters as dead ones: a heartbeat of the group revives them."""
        now = self.clock_ms()
        for topic, groups in stored.filter_data_by_topic.items():
            for group, data in groups.group_filter_data.items():
                try:
                    wanted = compile_typed(data.expression_type, data.expression)
                except FilterInvalid as error:
                    logger.warning(
                        "consumerFilter.json: the filter of group %s for topic %s is left out: %s",
                        group,
                        topic,
                        error,
                    )
                    continue
                born = data.born_time or now
                dead = data.dead_time or max(born, now - 30_000)
                self._put(
                    GroupFilter(
                        topic, group, data.expression, data.client_version, born, wanted, dead
                    )
                )


def open_consumer_filters(
    directory: Path,
    clock_ms: Callable[[], int],
    *,
    keep_dead_ms: int = 86_400_000,
    connected: Callable[[str], bool] = lambda group: True,
) -> ConsumerFilters:
    """Load consumerFilter.json. Raises: DamagedTable."""
    filters = ConsumerFilters(
        directory / "consumerFilter.json",
        clock_ms,
        keep_dead_ms=keep_dead_ms,
        connected=connected,
        gather_seconds=SAVE_SECONDS,
    )
    filters.load(load_table(filters.path, _decode) or StoredFilters())
    return filters


def _decode(content: bytes) -> StoredFilters:
    try:
        return msgspec.convert(loads(content), StoredFilters)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
