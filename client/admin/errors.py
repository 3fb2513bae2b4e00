"""Errors that only administration has. All are ``TrioMQError``s: one line with cause and fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from triomq.client.core.errors import RequestTimeout, TrioMQError


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names))


@attrs.define(repr=False, slots=False)
class ClusterNotFound(TrioMQError):
    """The name servers know no cluster of that name."""

    name: str
    known: tuple[str, ...] = attrs.field(converter=_sorted)

    def __str__(self) -> str:
        if not self.known:
            return (
                f"there is no cluster {self.name!r}: no broker is registered; start one with"
                " `mqbroker -n ADDRESSES`"
            )
        return f"there is no cluster {self.name!r}: use one of {', '.join(self.known)}"


@attrs.define(repr=False, slots=False)
class BrokerMissing(TrioMQError):
    """No broker of that name exists, or none with the wanted topic."""

    name: str
    """empty: any broker would do"""
    known: tuple[str, ...] = attrs.field(converter=_sorted)
    where: str = "in the cluster"
    none: str = "none is registered; start one with `mqbroker -n ADDRESSES`"

    def __str__(self) -> str:
        known = f"use one of {', '.join(self.known)}" if self.known else self.none
        if not self.name:
            return f"there is no broker {self.where}: {known}"
        return f"there is no broker {self.name!r} {self.where}: {known}"


@attrs.define(repr=False, slots=False)
class MasterMissing(TrioMQError):
    """A cluster has slaves only."""

    cluster: str

    def __str__(self) -> str:
        return (
            f"no master of cluster {self.cluster!r} is registered, so that nothing was done: start"
            " it again, or name a slave with -b/--brokerAddr"
        )


@attrs.define(repr=False, slots=False)
class ContextNotFound(TrioMQError):
    """The file of contexts has no context of that name."""

    name: str
    known: tuple[str, ...] = attrs.field(converter=_sorted)

    def __str__(self) -> str:
        known = (
            f"use one of {', '.join(self.known)}"
            if self.known
            else f"there are none; make one with `mqadmin context set {self.name} -n ADDRESSES`"
        )
        return f"there is no context {self.name!r}: {known}"


@attrs.define(repr=False, slots=False)
class GroupsOnline(TrioMQError):
    """Groups whose offsets were to be set have members; ``members``: group → number."""

    members: Mapping[str, int]

    def __str__(self) -> str:
        groups = ", ".join(f"{group} ({count})" for group, count in self.members.items())
        return (
            f"nothing was done: groups have members, which would overwrite their offsets: {groups};"
            " stop the members, or give --force"
        )


@attrs.define(repr=False, slots=False)
class ExportIncomplete(TrioMQError):
    """Some brokers did not answer an export; ``reasons`` maps each to its failure."""

    reasons: Mapping[str, str]
    asked: int

    def __str__(self) -> str:
        texts = "; ".join(f"{broker}: {reason}" for broker, reason in self.reasons.items())
        return (
            f"nothing was written: {len(self.reasons)} of {self.asked} brokers did not answer"
            f" ({texts}); start them, or leave them out with --partial"
        )


@attrs.define(repr=False, slots=False)
class NotWritable(TrioMQError):
    """A topic has no queue that can be written."""

    topic: str

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has no queue that can be written: `mqadmin topic route -t"
            f" {self.topic}` shows its permission, `mqadmin topic permission` and"
            " `mqadmin broker add-write` change it"
        )


@attrs.define(repr=False, slots=False)
class NotReadable(TrioMQError):
    """A topic has no queue that can be read."""

    topic: str

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has no queue that can be read: `mqadmin topic route -t"
            f" {self.topic}` shows its permission, `mqadmin topic permission -p 6` changes it"
        )


@attrs.define(repr=False, slots=False)
class MessageNotFound(TrioMQError):
    """No broker of the topic has such a message."""

    what: str
    topic: str

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has no message with {self.what}: check topic and spelling; it"
            " may also be older than the brokers' retention"
        )


@attrs.define(repr=False, slots=False)
class FilterRefused(TrioMQError):
    """A broker does not check messages by the condition that was given."""

    sql: str
    reason: str

    def __str__(self) -> str:
        return (
            f"--filter {self.sql!r} cannot be used: {self.reason}; write a condition such as"
            " \"price > 10 AND region = 'eu'\", and set enablePropertyFilter=true on the brokers"
        )


@attrs.define(repr=False, slots=False)
class MessageNowhere(TrioMQError):
    """No broker has the message that was to be explained."""

    word: str
    searched: Sequence[str]
    topic: str | None

    def __str__(self) -> str:
        fix = "check spelling and topic" if self.topic is not None else "check the spelling"
        return (
            f"no broker has a message {self.word!r}; looked in {', in '.join(self.searched)}:"
            f" {fix}; it may also be older than the brokers' retention"
        )


@attrs.define(repr=False, slots=False)
class TraceNotFound(TrioMQError):
    """The brokers have no trace of a message."""

    key: str
    topic: str

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} has no trace of id or key {self.key!r}: clients trace with"
            " ClientSettings(trace=True) (Java: enableTrace) and send it within 5 s; it may also be"
            " older than the brokers' retention"
        )


@attrs.define(repr=False, slots=False)
class TraceTopicMissing(TrioMQError):
    """No broker has the topic for message traces."""

    topic: str

    def __str__(self) -> str:
        return (
            f"no broker has the topic {self.topic!r} for message traces: set traceTopicEnable=true"
            " on a broker and restart it, or create it with `mqadmin topic create -c CLUSTER -t"
            f" {self.topic}`; then let clients trace (ClientSettings(trace=True), Java:"
            " enableTrace)"
        )


@attrs.define(repr=False, slots=False)
class UserExists(TrioMQError):
    """A broker has a user of that name."""

    name: str
    broker: str

    def __str__(self) -> str:
        return (
            f"{self.broker} has user {self.name!r} already: change it with `mqadmin user update`,"
            " or choose another name"
        )


@attrs.define(repr=False, slots=False)
class SubjectMissing(TrioMQError):
    """No asked broker has that user, or rules about it."""

    what: str
    fix: str

    def __str__(self) -> str:
        return f"no broker that was asked has {self.what}: {self.fix}"


@attrs.define(repr=False, slots=False)
class NoBrokerAnswered(TrioMQError):
    """Every asked broker failed; ``reasons`` maps each broker to its failure."""

    reasons: Mapping[str, str]

    def __str__(self) -> str:
        if len(self.reasons) == 1:
            return next(f"{broker}: {reason}" for broker, reason in self.reasons.items())
        return f"none of {len(self.reasons)} brokers answered: " + "; ".join(
            f"{broker}: {reason}" for broker, reason in self.reasons.items()
        )


class NotConfirmed(TrioMQError):
    """The user did not confirm a command that deletes or sends."""

    def __str__(self) -> str:
        return "not confirmed: nothing was done"


class ClientSilent(RequestTimeout):
    """A client did not answer a request that its broker passed on."""

    def __str__(self) -> str:
        """Name the client's end first: the broker answers other requests."""
        return (
            f"the client behind {self.address} did not answer {self.request} within"
            f" {self.seconds:.3g} s: its process hangs, or it is cut off; see its log"
        )


class ChangeUnanswered(RequestTimeout):
    """A server did not answer a request that changes it."""

    def __str__(self) -> str:
        """Say what the caller must do before the next try."""
        return f"{super().__str__()}; the change may still take effect: look before you repeat it"


class CommandTimeout(TrioMQError, TimeoutError):
    """The command took longer than ``--timeout`` allows."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        """Say that the outcome is unknown."""
        return (
            f"the command did not end within {self.seconds} s, and whether a change took effect is"
            " unknown; give it more time with --timeout"
        )
