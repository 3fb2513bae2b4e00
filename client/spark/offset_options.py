"""The options ``startingOffsets`` and ``endingOffsets``: a word, or an offset for each queue.

Those by timestamp have times in the same shape.

-2 is the earliest offset, -1 the latest.

    earliest | latest | {"orders": {"broker-a": {"0": 23, "*": -2}}, "*": -1}

A queue takes its own entry, otherwise the nearest ``"*"`` around it; a queue without either is an
error.
"""

import json
from collections.abc import Iterator
from typing import Any

import attrs

from triomq.client.spark.offsets import Queue
from triomq.client.spark.option_values import integer

EARLIEST = -2
LATEST = -1
GROUP = -3
"""the offset that the consumer group has stored; only from the word ``group``"""
ANY = "*"
SHAPE = '{"topicA":{"broker-a":{"0":23,"*":-2}}}'


@attrs.frozen
class OffsetOption:
    """Offsets by topic, broker and queue number, with ``*`` at any level."""

    tree: dict[str, object]

    def of(self, queue: Queue) -> int | None:
        """Return an offset, EARLIEST or LATEST for ``queue``; None if it has no entry."""
        return look_up(self.tree, (queue.topic, queue.broker, str(queue.queue_id)))

    @property
    def topics(self) -> set[str]:
        """The topics that have an entry."""
        return {topic for topic in self.tree if topic != ANY}

    @property
    def allows_latest(self) -> bool:
        return LATEST in leaves(self.tree)

    @property
    def allows_group(self) -> bool:
        return GROUP in leaves(self.tree)

    def queues(self) -> list[Queue]:
        """Return the queues that have an entry of their own."""
        named = []
        for topic, brokers in self.tree.items():
            for broker, numbers in (brokers if isinstance(brokers, dict) else {}).items():
                if isinstance(numbers, dict):
                    named += [
                        Queue(topic, broker, int(number)) for number in numbers if number != ANY
                    ]
        return named


def look_up(tree: dict[str, Any], path: tuple[str, ...]) -> int | None:
    inner = tree.get(path[0])
    if isinstance(inner, dict):
        found = look_up(inner, path[1:])
        if found is not None:
            return found
    elif inner is not None:
        return int(inner)
    any_other = tree.get(ANY)
    return int(any_other) if any_other is not None else None


def leaves(tree: dict[str, Any]) -> Iterator[int]:
    for value in tree.values():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield value


def parse_start(value: str) -> OffsetOption:
    """Parse ``startingOffsets``.

    Raises: ValueError with the rule.
    """
    words = {"earliest": EARLIEST, "latest": LATEST, "group": GROUP}
    word = value.strip().lower()
    if word in words:
        return OffsetOption({ANY: words[word]})
    return OffsetOption(
        checked_tree(
            value, f"it must be earliest, latest, group or JSON like {SHAPE}", least=EARLIEST
        )
    )


def parse_end(value: str) -> OffsetOption:
    """Parse ``endingOffsets``.

    Raises: ValueError with the rule.
    """
    if value.strip().lower() == "latest":
        return OffsetOption({ANY: LATEST})
    return OffsetOption(
        checked_tree(value, f"it must be latest or JSON like {SHAPE} without -2", least=LATEST)
    )


def parse_time(value: str) -> OffsetOption:
    """Parse ``startingTimestamp`` and ``endingTimestamp``: one time (epoch, ms) for all queues.

    Raises: ValueError with the rule.
    """
    return OffsetOption({ANY: integer(0)(value)})


def parse_times(value: str) -> OffsetOption:
    """Parse ``startingOffsetsByTimestamp`` and ``endingOffsetsByTimestamp``: times (epoch, ms).

    Raises: ValueError with the rule.
    """
    rule = (
        f"it must be JSON like {SHAPE.replace('23', '1764000000000').replace('-2', '0')} of times"
    )
    return OffsetOption(checked_tree(value, f"{rule} (epoch, ms)", least=0))


def checked_tree(value: str, rule: str, *, least: int) -> dict[str, object]:
    try:
        tree = json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"{rule}; as JSON it fails: {error}") from error
    if not isinstance(tree, dict) or not tree:
        raise ValueError(rule)
    check_level(tree, 0, rule, least)
    return tree


def check_level(tree: dict[str, object], depth: int, rule: str, least: int) -> None:
    """Check that numbers are at the third level, or under a ``*``.

    Raises: ValueError with the rule.
    """
    for name, value in tree.items():
        if isinstance(value, dict) and depth < 2 and name != ANY and value:
            check_level(value, depth + 1, rule, least)
        elif type(value) is not int or value < least or (depth < 2 and name != ANY):
            raise ValueError(f"{rule}; {name!r}: {value!r} does not fit")
        elif depth == 2 and name != ANY and not name.isdecimal():
            raise ValueError(f"{rule}; {name!r} is not a queue number")
