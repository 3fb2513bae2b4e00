"""Claims: what a store of ``@once`` keeps for a message, and what the guard asks of a store.

A key is the message's identity within its *scope*, the consumer group and the topic. For a key a
store has nothing, a *claim* (some consumer works on it, until its lease ends), or a *mark* (the
effect is done, until the retention ends). What has ended counts as absent, whether the store has
removed it or not.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol, Self, TypeVar

import attrs

from triomq.client.receiving.message_view import MessageView
from triomq.remoting.protocol.message_properties import ORIGIN_MESSAGE_ID, UNIQ_KEY

C_co = TypeVar("C_co", covariant=True)

LEASE_SECONDS = 60.0
RETENTION_SECONDS = 72 * 3600.0
"""As long as a broker keeps messages (``fileReservedTime``): older ones do not come again."""
ATTEMPT_SECONDS = 0.5
"""Maximum time that one try waits inside the database, where nothing can cancel it."""
KEY_CHARACTERS_MAX = 255


@attrs.frozen
class Done:
    """The effect is done."""


@attrs.frozen
class Busy:
    """Another consumer works on the key, or the database is busy: try again."""


class Held(Protocol[C_co]):
    """A key that this consumer works on."""

    @property
    def connection(self) -> C_co:
        """The connection with the open transaction; None for a claim."""

    def finish(self) -> bool:
        """Mark the key as done, with all changes of the transaction.

        Returns: False if that is impossible, because another consumer may have taken the key over.
        Raises: ``OnceStoreFailed``.
        """

    def release(self) -> None:
        """Give the key up, and undo the changes of the transaction. Raises: ``OnceStoreFailed``."""


class OnceStore(Protocol):
    """What ``@once`` needs of a store. All methods block, and may be called from any thread."""

    @property
    def lease(self) -> float:
        """Seconds that a handler may take; after the death of its process others wait for them."""

    def claim(self, scope: str, key: str) -> Held[None] | Done | Busy:
        """Claim a key in one atomic step, by one try. Raises: ``OnceStoreFailed``."""

    def close(self) -> None:
        """Close the connections that are not in use."""


class TransactionalOnceStore(OnceStore, Protocol[C_co]):
    """A store in a database whose transactions can have the handler's effect as well."""

    def begin(self, scope: str, key: str) -> Held[C_co] | Done | Busy:
        """Begin a transaction that marks the key, by one try. Raises: ``OnceStoreFailed``."""


class ClosedByBlock(ABC):
    """A store that a ``with`` block closes at its end."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections that are not in use; the next call opens one again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def scope_of(message: MessageView) -> str:
    """Return the message's group and topic: "/" is in neither."""
    return f"{message.group}/{message.topic}"


def message_key(message: MessageView) -> str:
    """Return what all copies of a message have in common.

    That is the producer's unique id. A message without one, from a very old client, has the id of
    its first place in the log, which retries keep as their origin.
    """
    properties = message.properties
    return (
        properties.get(UNIQ_KEY) or properties.get(ORIGIN_MESSAGE_ID) or message.offset_message_id
    )


def stored_key(key: str) -> str:
    """Return a key as stores keep it: long ones, and those with control characters, hashed."""
    if len(key) <= KEY_CHARACTERS_MAX and key.isprintable():
        return key
    return f"sha256:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
