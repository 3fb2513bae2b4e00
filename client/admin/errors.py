"""Errors that only administration has, and the exit code of each failure.  All are `TrioMQError`s: one line with cause and fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from triomq.client.admin.arguments import UsageError
from triomq.client.errors import (
    GroupNotFound,
    GroupOffline,
    NoNameServer,
    RouteNotFound,
    SettingsError,
    TopicNotFound,
    TrioMQError,
)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PARTIAL = 3
EXIT_NOT_FOUND = 4
EXIT_NO_NAME_SERVER = 6

EXIT_CODES: Mapping[int, str] = {
    EXIT_OK: "done",
    EXIT_FAILED: "the operation failed, for instance because a broker refused it",
    EXIT_USAGE: "the command line cannot be understood; nothing was done",
    EXIT_PARTIAL: "some brokers answered and some did not; what is printed is incomplete",
    EXIT_NOT_FOUND: "the topic, group, cluster, broker or message does not exist",
    EXIT_NO_NAME_SERVER: "no name server is configured, or none answered",
}
"""Exit codes of mqadmin and what they mean."""


class ClusterNotFound(TrioMQError):
    """The name servers know no cluster of that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(name, tuple(known))
        self.name = name
        self.known = tuple(sorted(known))

    def __str__(self) -> str:
        """Name the clusters that exist."""
        if not self.known:
            return f"there is no cluster {self.name!r}: no broker is registered at all; start one with `mqbroker -n ADDRESSES`"
        return f"there is no cluster {self.name!r}: use one of {', '.join(self.known)}"


class BrokerNotFound(TrioMQError):
    """No broker of that name has what is asked for."""

    def __init__(self, name: str, known: Iterable[str], where: str = "in the cluster") -> None:
        super().__init__(name, tuple(known), where)
        self.name = name
        self.known = tuple(sorted(known))
        self.where = where

    def __str__(self) -> str:
        """Name the brokers that exist."""
        known = (
            f"use one of {', '.join(self.known)}"
            if self.known
            else "none is registered; start one with `mqbroker -n ADDRESSES`"
        )
        return f"there is no broker {self.name!r} {self.where}: {known}"


class MessageNotFound(TrioMQError):
    """No broker of the topic has such a message."""

    def __init__(self, what: str, topic: str) -> None:
        super().__init__(what, topic)
        self.what = what
        self.topic = topic

    def __str__(self) -> str:
        """Say where was looked."""
        return f"topic {self.topic!r} has no message with {self.what}: check topic and spelling; it may also be older than the brokers' retention"


class NoBrokerAnswered(TrioMQError):
    """Every broker that was asked failed; `reasons` maps each to what happened there."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(dict(reasons))
        self.reasons = dict(reasons)

    def __str__(self) -> str:
        """Give the reason of each broker."""
        if len(self.reasons) == 1:
            return next(f"{broker}: {reason}" for broker, reason in self.reasons.items())
        return f"none of {len(self.reasons)} brokers answered: " + "; ".join(
            f"{broker}: {reason}" for broker, reason in self.reasons.items()
        )


def exit_code(error: BaseException) -> int:
    """Return the exit code that belongs to a failure."""
    match error:
        case UsageError() | SettingsError():
            return EXIT_USAGE
        case NoNameServer():
            return EXIT_NO_NAME_SERVER
        case (
            RouteNotFound()
            | TopicNotFound()
            | GroupNotFound()
            | GroupOffline()
            | ClusterNotFound()
            | BrokerNotFound()
            | MessageNotFound()
        ):
            return EXIT_NOT_FOUND
    return EXIT_FAILED
