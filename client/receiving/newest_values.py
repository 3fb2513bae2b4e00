"""NewestValues: a topic as a table, the newest message of each key."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from triomq.client.core.errors import TooManyKeys
from triomq.client.receiving.received import ReceivedMessage
from triomq.remoting.protocol.message_properties import KEYS


@attrs.define(eq=False)
class NewestValues:
    """Takes messages in the order of each queue.

    A key is the whole property KEYS, as for compaction topics. A message without one belongs to no
    table. Deleted keys are remembered until ``table``, since queues are read side by side.
    """

    keys_max: int
    _newest: dict[str, ReceivedMessage] = attrs.field(factory=dict, init=False)

    def add(self, messages: Iterable[ReceivedMessage]) -> None:
        """Take messages. Raises: ``TooManyKeys``."""
        newest = self._newest
        for message in messages:
            key = message.properties.get(KEYS, "")
            known = newest.get(key)
            if known is None:
                if not key.strip():
                    continue
                if len(newest) >= self.keys_max:
                    raise TooManyKeys(
                        f"{message.topic} has more than {self.keys_max:,} keys, deleted ones"
                        " included; raise keys_max if there is memory for their messages"
                    )
            elif not _follows(message, known):
                continue
            newest[key] = message

    def table(self) -> dict[str, ReceivedMessage]:
        """Return key → its newest message. An empty body has deleted its key.

        Source: store/kv/CompactionLog.java#shouldRetainMsg.
        """
        return {key: message for key, message in self._newest.items() if message.body}


def _follows(message: ReceivedMessage, known: ReceivedMessage) -> bool:
    """Return whether a message is newer than the known one of its key.

    The order of a queue is certain. Between queues only the clocks of their brokers are left.
    """
    if message.queue == known.queue:
        return message.queue_offset > known.queue_offset
    return message.store_timestamp >= known.store_timestamp
