"""Look a key or an id up in many topics of many brokers, within a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin import messages
from triomq.client.admin.answers import Answers
from triomq.client.admin.explain.outcomes import DELAYING_TOPICS, StoredCopy
from triomq.client.admin.messages import UNIQUE_COUNT_MAX
from triomq.client.core.errors import BrokerError, OffsetNotFound, TrioMQError
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.query import QueryMessageHeader
from triomq.remoting.protocol.message_properties import UNIQ_KEY
from triomq.remoting.protocol.names import HALF_TOPIC
from triomq.remoting.protocol.record import StoredMessage

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

WAITING_TOPICS = (*DELAYING_TOPICS, HALF_TOPIC)
"""topics of brokers in which a message waits for its time, or for the end of its transaction"""
TOPICS_MAX = 5_000
"""number of topics that are searched without ``-t``: one request for each and broker"""
TURN_TOPICS = 250
"""number of topics between two looks at the clock"""
UNIQUE_ID = re.compile(r"[0-9A-Fa-f]{32}")


@attrs.frozen
class Found:
    """What a search found, and how far it came."""

    answers: Answers[list[StoredCopy]]
    """by broker name"""
    searched: int
    """number of topics, the first of those that were wanted"""


def carries(word: str) -> Callable[[StoredMessage], bool]:
    """Return whether a message has a word as its unique id or as one of its keys."""
    return lambda message: message.properties.get(UNIQ_KEY) == word or word in message.keys


async def search(
    admin: Admin,
    brokers: Mapping[str, str],
    topics: Sequence[str],
    word: str,
    until: float,
    tell: Callable[[str], None],
) -> Found:
    """Look for an id or a key in topics, one turn after the other, until a time of Trio's clock.

    The index of a broker is asked for ids or for keys; which of them a word is, its form says. The
    other index is asked when that finds nothing in a few topics; most brokers have one for both.
    """
    import trio  # not for the help: start-up time

    is_id = UNIQUE_ID.fullmatch(word) is not None
    copies: dict[str, list[StoredCopy]] = {name: [] for name in brokers}
    failures: dict[str, TrioMQError] = {}
    searched = 0
    while searched < len(topics) and (not searched or trio.current_time() < until):
        if len(topics) > TURN_TOPICS:
            tell(
                f"looking for {word!r} in topics {searched + 1} to"
                f" {min(searched + TURN_TOPICS, len(topics))} of {len(topics)} at"
                f" {len(brokers)} brokers; at most {TOPICS_MAX} topics and half of --timeout"
                " (-t TOPIC looks in one)"
            )
        turn = topics[searched : searched + TURN_TOPICS]
        asked = {name: at for name, at in brokers.items() if name not in failures}
        found = await copies_of(admin, asked, turn, word, carries(word), unique=is_id)
        if len(topics) <= TURN_TOPICS and not any(found.values.values()):
            found = await copies_of(admin, asked, turn, word, carries(word), unique=not is_id)
        for name, some in found.values.items():
            copies[name] += some
        failures |= found.failures
        searched += len(turn)
    return Found(
        Answers({name: some for name, some in copies.items() if name not in failures}, failures),
        searched,
    )


async def copies_of(
    admin: Admin,
    brokers: Mapping[str, str],
    topics: Iterable[str],
    key: str,
    matches: Callable[[StoredMessage], bool],
    *,
    unique: bool = True,
) -> Answers[list[StoredCopy]]:
    """Return the records of some topics with an id or key, by broker name."""
    names = list(topics)

    async def at_broker(broker: str) -> list[StoredCopy]:
        answers = await admin.for_each(
            names, lambda topic: _query(admin, brokers[broker], topic, key, unique=unique)
        )
        for topic, error in answers.failures.items():
            # Rights may be missing for the topics of brokers.
            if topic not in WAITING_TOPICS or not isinstance(error, BrokerError):
                raise error
        return [
            StoredCopy(broker, message)
            for topic, some in answers.values.items()
            for message in some
            if message.topic == topic and matches(message)  # the index compares hashes only
        ]

    return await admin.for_each(brokers, at_broker)


async def _query(
    admin: Admin, address: str, topic: str, key: str, *, unique: bool
) -> list[StoredMessage]:
    header = QueryMessageHeader(
        topic=topic,
        key=key,
        count_max=UNIQUE_COUNT_MAX,
        begin_timestamp=0,
        end_timestamp=messages.FAR_FUTURE_MS,
        unique_key=unique,
    )
    try:
        return messages.records(await admin.ask(address, RequestCode.QUERY_MESSAGE, header))
    except OffsetNotFound:
        return []  # the broker's answer when its index has no such key
