"""Where a query begins or ends, as users write it: a word, or offsets per queue with -2 for the earliest and -1 for the latest.

    earliest | latest | {"orders": {"broker-a": {"0": 23, "*": -2}}, "*": -1}

A queue takes its own entry, else the nearest `"*"` around it; a queue without either is an error, because nobody said where it begins.
"""

import json
from collections.abc import Iterator
from typing import Any

import attrs

from triomq.client.spark.offsets import Queue

EARLIEST = -2
LATEST = -1
ANY = "*"
SHAPE = '{"topicA":{"broker-a":{"0":23,"*":-2}}}'


@attrs.frozen
class Start:
    """Offsets or marks for queues: a tree of topic, broker and queue number, with `*` at any level."""

    tree: dict[str, Any]

    def of(self, queue: Queue) -> int | None:
        """An offset, EARLIEST or LATEST for *queue*; None when the tree says nothing about it."""
        return look_up(self.tree, (queue.topic, queue.broker, str(queue.queue_id)))

    @property
    def topics(self) -> set[str]:
        """The topics that are named."""
        return {topic for topic in self.tree if topic != ANY}

    @property
    def allows_latest(self) -> bool:
        return LATEST in leaves(self.tree)

    def queues(self) -> list[Queue]:
        """The queues that are named one by one."""
        named = []
        for topic, brokers in self.tree.items():
            for broker, numbers in (brokers if isinstance(brokers, dict) else {}).items():
                if isinstance(numbers, dict):
                    named += [Queue(topic, broker, int(number)) for number in numbers if number != ANY]
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


def start_text(value: str) -> Start:
    """Parse `startingOffsets`.  Raises ValueError that says what would be right."""
    words = {"earliest": EARLIEST, "latest": LATEST}
    word = value.strip().lower()
    if word in words:
        return Start({ANY: words[word]})
    if word == "group":
        raise ValueError(
            "beginning at a group's offsets is not offered by this release; give earliest, latest or offsets"
        )
    return Start(checked_tree(value, f"it must be earliest, latest or JSON like {SHAPE}", least=EARLIEST))


def end_text(value: str) -> Start:
    """Parse `endingOffsets`.  Raises ValueError that says what would be right."""
    if value.strip().lower() == "latest":
        return Start({ANY: LATEST})
    return Start(checked_tree(value, f"it must be latest or JSON like {SHAPE} without -2", least=LATEST))


def checked_tree(value: str, rule: str, *, least: int) -> dict[str, Any]:
    try:
        tree = json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"{rule}; as JSON it fails: {error}") from error
    if not isinstance(tree, dict) or not tree:
        raise ValueError(rule)
    check_level(tree, 0, rule, least)
    return tree


def check_level(tree: dict[str, Any], depth: int, rule: str, least: int) -> None:
    """Names are strings; numbers stand at the third level, or under a `*`."""
    for name, value in tree.items():
        if isinstance(value, dict) and depth < 2 and name != ANY and value:
            check_level(value, depth + 1, rule, least)
        elif type(value) is not int or value < least or (depth < 2 and name != ANY):
            raise ValueError(f"{rule}; {name!r}: {value!r} does not fit")
        elif depth == 2 and name != ANY and not name.isdecimal():
            raise ValueError(f"{rule}; {name!r} is no queue number")
