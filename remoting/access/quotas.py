"""Quotas: how much a user, topic or consumer group may ask of a broker in a second, and how many
connections a user may have to it, or to a proxy. SANS-IO.

A quota is a token bucket of one second. A request that finds a bucket empty is refused, whatever
its size; one that finds something in it may leave a debt. So a quota of bytes never refuses a large
message for good, and the mean rate is the quota.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

import attrs

from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.settings import Kind
from triomq.remoting.core.token_bucket import TokenBucket
from triomq.remoting.protocol.codes import ResponseCode

BURST_SECONDS = 1.0
ACCOUNTS_MAX = 10_000
"""Names are the clients' to choose: beyond this number the account that was opened first goes."""


class Unit(enum.Enum):
    """What is counted; the value is the word in settings."""

    REQUESTS = "requests"
    MESSAGES = "messages"
    BYTES = "bytes"
    CONNECTIONS = "connections"
    """Not in a second, but at once; of users only."""


class Subject(enum.Enum):
    """Whose requests are counted; the value is the word in settings."""

    USER = "User"
    TOPIC = "Topic"
    GROUP = "Group"


@attrs.frozen
class Quota:
    """The limits of one name, or of each name with a prefix (``name`` ends with ``*``)."""

    subject: Subject
    name: str
    limits: tuple[tuple[Unit, int], ...]

    def covers(self, name: str) -> bool:
        if self.name.endswith("*"):
            return name.startswith(self.name[:-1])
        return name == self.name

    @property
    def rank(self) -> tuple[bool, int]:
        """The place among quotas that cover one name; the smallest, which is most exact, counts."""
        return self.name.endswith("*"), -len(self.name)

    def __str__(self) -> str:
        words = " ".join(f"{unit.value}={most}" for unit, most in self.limits)
        return f"{self.subject.value}:{self.name} {words}"


def _read(text: str) -> tuple[Quota, ...]:
    return tuple(_read_quota(part.strip()) for part in text.split(";") if part.strip())


def _read_quota(text: str) -> Quota:
    target, *words = text.split()
    kind, colon, name = target.partition(":")
    limits = {}
    try:
        subject = Subject(kind.capitalize())
        for word in words:
            unit, _, most = word.partition("=")
            limits[Unit(unit)] = int(most)
        if not colon or not name or "*" in name[:-1] or not limits or min(limits.values()) < 1:
            raise ValueError(text)
        if Unit.CONNECTIONS in limits and subject is not Subject.USER:
            raise ValueError(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a quota; write 'Topic:orders messages=500 bytes=1000000', with User,"
            " Topic or Group and with requests, messages, bytes, or connections of a User, and"
            " numbers from 1 on"
        ) from None
    return Quota(subject, name, tuple(limits.items()))


QUOTAS: Kind[tuple[Quota, ...]] = Kind(
    "quotas separated by semicolons, may be empty",
    _read,
    lambda quotas: "; ".join(map(str, quotas)),
)


class UserConnection(Protocol):
    """Something that requests of users come over, at any port."""

    close_reason: str
    """Empty while it is open."""


@attrs.frozen
class Use:
    """What one request uses. A name is None if the request has none.

    *requests*: 0 for one of a kind that only needs a connection.
    """

    user: str | None
    topic: str | None
    group: str | None
    messages: int = 0
    size: int = 0
    requests: int = 1
    connection: UserConnection | None = None


@attrs.define(eq=False)
class _Account:
    """What one name has used of its quota."""

    quota: Quota
    name: str
    buckets: dict[Unit, TokenBucket]
    connections_max: int | None
    connections: set[UserConnection] = attrs.field(factory=set, init=False)

    @classmethod
    def open(cls, quota: Quota, name: str) -> _Account:
        limits = dict(quota.limits)
        connections_max = limits.pop(Unit.CONNECTIONS, None)
        buckets = {unit: TokenBucket(most, BURST_SECONDS) for unit, most in limits.items()}
        return cls(quota, name, buckets, connections_max)

    def is_crowded(self, connection: UserConnection | None) -> bool:
        """Return whether a connection is one too many."""
        if connection is None or self.connections_max is None or connection in self.connections:
            return False
        self.connections = {each for each in self.connections if not each.close_reason}
        return len(self.connections) >= self.connections_max

    def spend(self, use: Use, spent: dict[Unit, int]) -> None:
        for unit, bucket in self.buckets.items():
            bucket.spend(spent[unit])
        if use.connection is not None and self.connections_max is not None:
            self.connections.add(use.connection)


@attrs.define(eq=False)
class Quotas:
    """The accounts of one server."""

    quotas: Sequence[Quota]
    """Change them by ``replace`` only."""
    refused: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    """(quota as its subject and name, unit) -> requests."""
    _accounts: dict[tuple[Subject, str], _Account | None] = attrs.field(factory=dict, init=False)

    def replace(self, quotas: Sequence[Quota]) -> None:
        """Count by other quotas from now on, and forget what was used."""
        self.quotas = quotas
        self._accounts.clear()

    def require(self, use: Use, now: float, *, reads: bool = False) -> None:
        """Refuse a request beyond a quota, or spend what it uses.

        *now*: a steady clock, in seconds; *reads*: whether it is a consumer's, which pauses then.

        Raises: Rejected.
        """
        if reason := self.refusal(use, now):
            busy = ResponseCode.FLOW_CONTROL if reads else ResponseCode.SYSTEM_BUSY
            raise Rejected(busy, f"[QUOTA]broker busy, start flow control for a while: {reason}")

    def refusal(self, use: Use, now: float) -> str:
        """Return why a request is refused, and count it; an empty text lets it in, and spends.

        *now*: a steady clock, in seconds. Checkpoint: never.
        """
        found = list(self._of(use))
        spent = {Unit.REQUESTS: use.requests, Unit.MESSAGES: use.messages, Unit.BYTES: use.size}
        for account in found:
            if account.is_crowded(use.connection):
                most = f"{account.connections_max} connections"
                return self._refuse(account, Unit.CONNECTIONS, most)
            for unit, bucket in account.buckets.items():
                if spent[unit] and bucket.allowance(now) < 1:
                    return self._refuse(account, unit, f"{bucket.per_second} {unit.value} a second")
        for account in found:
            account.spend(use, spent)
        return ""

    def _refuse(self, account: _Account, unit: Unit, most: str) -> str:
        subject = account.quota.subject.value
        self.refused[f"{subject}:{account.quota.name}", unit.value] += 1
        return f"the quota of {subject}:{account.name} is {most}"

    def _of(self, use: Use) -> Iterator[_Account]:
        """Yield the accounts of the names of a request."""
        for subject, name in (
            (Subject.USER, use.user),
            (Subject.TOPIC, use.topic),
            (Subject.GROUP, use.group),
        ):
            if not name:
                continue
            key = subject, name
            if key not in self._accounts:
                self._accounts[key] = self._made(subject, name)
                if len(self._accounts) > ACCOUNTS_MAX:
                    del self._accounts[next(iter(self._accounts))]
            known = self._accounts[key]
            if known is not None:
                yield known

    def _made(self, subject: Subject, name: str) -> _Account | None:
        covering = [each for each in self.quotas if each.subject is subject and each.covers(name)]
        if not covering:
            return None
        return _Account.open(min(covering, key=lambda each: each.rank), name)
