"""Parse the text of an option.

Each parser takes what a user wrote, and raises ValueError with the rule; ``options`` adds the name
of the option.
"""

import json
import re
from collections.abc import Callable

from triomq.client.spark.offsets import Queue
from triomq.remoting.core.address import parse_address_list

TOPIC_PATTERN = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TIME_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def text(value: str) -> str:
    if not value.strip():
        raise ValueError("it is empty")
    return value.strip()


def regular_expression(value: str) -> re.Pattern[str]:
    try:
        return re.compile(text(value))
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from error


def boolean(value: str) -> bool:
    if value.strip().lower() not in {"true", "false"}:
        raise ValueError("it must be true or false")
    return value.strip().lower() == "true"


def integer(least: int, most: int = (1 << 63) - 1) -> Callable[[str], int]:
    """Return a parser of whole numbers between ``least`` and ``most``."""

    def parse(value: str) -> int:
        number = int(value) if re.fullmatch(r"\s*-?\d+\s*", value) else None
        if number is None or not least <= number <= most:
            raise ValueError(
                f"it must be a whole number of at least {least}"
                + (f" and at most {most}" if most < 1 << 62 else "")
            )
        return number

    return parse


def size(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of byte counts such as ``262144``, ``256k`` or ``1m``."""

    def parse(value: str) -> int:
        match = re.fullmatch(r"\s*(\d+)\s*([kmg]?)b?\s*", value.lower())
        number = int(match[1]) * SIZE_UNITS[match[2]] if match else -1
        if not least <= number <= most:
            raise ValueError(
                f"it must be a size such as 262144, 256k or 1m, from {least} to {most} bytes"
            )
        return number

    return parse


def milliseconds(value: str) -> int:
    """Parse ``1500``, ``1500ms``, ``30s``, ``10m`` or ``1h``."""
    match = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h|)\s*", value.lower())
    if not match:
        raise ValueError("it must be a time such as 1500, 1500ms, 30s or 10m")
    return int(match[1]) * TIME_UNITS_MS[match[2]]


def seconds(value: str) -> float:
    """Parse a time as ``milliseconds`` does."""
    return milliseconds(value) / 1000


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.strip().lower() not in choices:
            raise ValueError(f"it must be {' or '.join(choices)}")
        return value.strip().lower()

    return parse


def addresses(value: str) -> tuple[str, ...]:
    """Parse ``host:port;host:port``."""
    return tuple(parse_address_list(value))


def topic_names(value: str) -> tuple[str, ...]:
    """Parse comma-separated topic names."""
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise ValueError("it names no topic")
    for name in names:
        check_topic(name)
    return names


def check_topic(name: object) -> None:
    if not isinstance(name, str) or not TOPIC_PATTERN.fullmatch(name):
        raise ValueError(f"{name!r} is not a topic name (letters, digits, and any of % | _ -)")


def assignment(value: str) -> tuple[Queue, ...]:
    """Parse ``{"topicA":{"broker-a":[0,1]}}``."""
    queues = []
    try:
        for topic, brokers in json.loads(value).items():
            check_topic(topic)
            for broker, numbers in brokers.items():
                queues += [Queue(topic, broker, number) for number in numbers]
        if not queues or any(
            type(queue.queue_id) is not int or queue.queue_id < 0 for queue in queues
        ):
            raise ValueError("queue numbers are whole and not negative")
    except (AttributeError, TypeError, json.JSONDecodeError) as error:
        raise ValueError('it must be JSON like {"topicA":{"broker-a":[0,1]}}') from error
    return tuple(sorted(set(queues)))


def tag_expression(value: str) -> tuple[str, ...]:
    """Parse ``A || B`` into its tags; an empty text and ``*`` mean all messages: no tags."""
    names = tuple(sorted({name.strip() for name in value.split("||") if name.strip()}))
    return () if not names or "*" in names else names
