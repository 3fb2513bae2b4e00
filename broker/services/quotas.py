"""Quotas: how much a user, topic or consumer group may ask of this broker in a second. SANS-IO.

A quota is a token bucket of one second. A request that finds a bucket empty is refused, whatever
its size; one that finds something in it may leave a debt. So a quota of bytes never refuses a large
message for good, and the mean rate is the quota.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence

import attrs

from triomq.remoting.core.settings import Kind
from triomq.remoting.core.token_bucket import TokenBucket

BURST_SECONDS = 1.0
BUCKETS_MAX = 10_000
"""Names are the clients' to choose: beyond this number the bucket that was made first goes."""


class Unit(enum.Enum):
    """What is counted; the value is the word in settings."""

    REQUESTS = "requests"
    MESSAGES = "messages"
    BYTES = "bytes"


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
    except ValueError:
        raise ValueError(
            f"{text!r} is not a quota; write 'Topic:orders messages=500 bytes=1000000', with User,"
            " Topic or Group and with requests, messages or bytes, and numbers from 1 on"
        ) from None
    return Quota(subject, name, tuple(limits.items()))


QUOTAS: Kind[tuple[Quota, ...]] = Kind(
    "quotas separated by semicolons, may be empty",
    _read,
    lambda quotas: "; ".join(map(str, quotas)),
)


@attrs.frozen
class Use:
    """What one request uses. A name is None if the request has none."""

    user: str | None
    topic: str | None
    group: str | None
    messages: int = 0
    size: int = 0


@attrs.define(eq=False)
class Quotas:
    """The buckets of one broker."""

    quotas: Sequence[Quota]
    """Change them by ``replace`` only."""
    refused: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    """(quota as its subject and name, unit) -> requests."""
    _buckets: dict[tuple[Subject, str], tuple[Quota, dict[Unit, TokenBucket]] | None] = attrs.field(
        factory=dict, init=False
    )

    def replace(self, quotas: Sequence[Quota]) -> None:
        """Count by other quotas from now on, and forget what was used."""
        self.quotas = quotas
        self._buckets.clear()

    def refusal(self, use: Use, now: float) -> str:
        """Return why a request is refused, and count it; an empty text lets it in, and spends.

        *now*: a steady clock, in seconds. Checkpoint: never.
        """
        found = list(self._of(use))
        spent = {Unit.REQUESTS: 1, Unit.MESSAGES: use.messages, Unit.BYTES: use.size}
        for quota, name, buckets in found:
            for unit, bucket in buckets.items():
                if spent[unit] and bucket.allowance(now) < 1:
                    self.refused[f"{quota.subject.value}:{quota.name}", unit.value] += 1
                    return (
                        f"the quota of {quota.subject.value}:{name} is {bucket.per_second}"
                        f" {unit.value} a second"
                    )
        for _, _, buckets in found:
            for unit, bucket in buckets.items():
                bucket.spend(spent[unit])
        return ""

    def _of(self, use: Use) -> Iterator[tuple[Quota, str, dict[Unit, TokenBucket]]]:
        """Yield the quotas that a request falls under, the name, and its buckets."""
        for subject, name in (
            (Subject.USER, use.user),
            (Subject.TOPIC, use.topic),
            (Subject.GROUP, use.group),
        ):
            if not name:
                continue
            key = subject, name
            if key not in self._buckets:
                self._buckets[key] = self._made(subject, name)
                if len(self._buckets) > BUCKETS_MAX:
                    del self._buckets[next(iter(self._buckets))]
            known = self._buckets[key]
            if known is not None:
                yield known[0], name, known[1]

    def _made(self, subject: Subject, name: str) -> tuple[Quota, dict[Unit, TokenBucket]] | None:
        covering = [each for each in self.quotas if each.subject is subject and each.covers(name)]
        if not covering:
            return None
        quota = min(covering, key=lambda each: each.rank)
        return quota, {unit: TokenBucket(most, BURST_SECONDS) for unit, most in quota.limits}
