"""Errors that only administration has. All are ``TrioMQError``s: one line with cause and fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from triomq.client.core.errors import RequestTimeout, TrioMQError


class ClusterNotFound(TrioMQError):
    """The name servers know no cluster of that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(name, tuple(known))
        self.name = name
        self.known = tuple(sorted(known))

    def __str__(self) -> str:
        """Name the clusters that exist."""
        if not self.known:
            return (
                f"there is no cluster {self.name!r}: no broker is registered; start one with"
                " `mqbroker -n ADDRESSES`"
            )
        return f"there is no cluster {self.name!r}: use one of {', '.join(self.known)}"


class BrokerMissing(TrioMQError):
    """No broker of that name exists, or none with the wanted topic."""

    def __init__(
        self,
        name: str,
        known: Iterable[str],
        where: str = "in the cluster",
        none: str = "none is registered; start one with `mqbroker -n ADDRESSES`",
    ) -> None:
        super().__init__(name, tuple(known), where, none)
        self.name = name
        self.known = tuple(sorted(known))
        self.where = where
        self.none = none

    def __str__(self) -> str:
        """Name the brokers that exist."""
        known = f"use one of {', '.join(self.known)}" if self.known else self.none
        return f"there is no broker {self.name!r} {self.where}: {known}"


class MasterMissing(TrioMQError):
    """A cluster has slaves only."""

    def __init__(self, cluster: str) -> None:
        super().__init__(cluster)
        self.cluster = cluster

    def __str__(self) -> str:
        """Name the ways out."""
        return (
            f"no master of cluster {self.cluster!r} is registered, so that nothing was done: start"
            " it again, or name a slave with -b/--brokerAddr"
        )


class ContextNotFound(TrioMQError):
    """The file of contexts has no context of that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(name, tuple(known))
        self.name = name
        self.known = tuple(sorted(known))

    def __str__(self) -> str:
        """Name the contexts that exist."""
        known = (
            f"use one of {', '.join(self.known)}"
            if self.known
            else f"there are none; make one with `mqadmin context set {self.name} -n ADDRESSES`"
        )
        return f"there is no context {self.name!r}: {known}"


class GroupsOnline(TrioMQError):
    """Groups whose offsets were to be set have members; ``members``: group → number."""

    def __init__(self, members: Mapping[str, int]) -> None:
        super().__init__(dict(members))
        self.members = dict(members)

    def __str__(self) -> str:
        """Name the groups and the ways out."""
        groups = ", ".join(f"{group} ({count})" for group, count in self.members.items())
        return (
            f"nothing was done: groups have members, which would overwrite their offsets: {groups};"
            " stop the members, or give --force"
        )


class ExportIncomplete(TrioMQError):
    """Some brokers did not answer an export; ``reasons`` maps each to its failure."""

    def __init__(self, reasons: Mapping[str, str], asked: int) -> None:
        super().__init__(dict(reasons), asked)
        self.reasons = dict(reasons)
        self.asked = asked

    def __str__(self) -> str:
        """Give the reason of each broker, and the way out."""
        texts = "; ".join(f"{broker}: {reason}" for broker, reason in self.reasons.items())
        return (
            f"nothing was written: {len(self.reasons)} of {self.asked} brokers did not answer"
            f" ({texts}); start them, or leave them out with --partial"
        )


class NotWritable(TrioMQError):
    """A topic has no queue that can be written."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        """Name the commands that show and change it."""
        return (
            f"topic {self.topic!r} has no queue that can be written: `mqadmin topic route -t"
            f" {self.topic}` shows its permission, `mqadmin topic permission` and"
            " `mqadmin broker add-write` change it"
        )


class NotReadable(TrioMQError):
    """A topic has no queue that can be read."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        """Name the command that changes it."""
        return (
            f"topic {self.topic!r} has no queue that can be read: `mqadmin topic route -t"
            f" {self.topic}` shows its permission, `mqadmin topic permission -p 6` changes it"
        )


class MessageNotFound(TrioMQError):
    """No broker of the topic has such a message."""

    def __init__(self, what: str, topic: str) -> None:
        super().__init__(what, topic)
        self.what = what
        self.topic = topic

    def __str__(self) -> str:
        """Name the topic, and why the message may be missing."""
        return (
            f"topic {self.topic!r} has no message with {self.what}: check topic and spelling; it"
            " may also be older than the brokers' retention"
        )


class FilterRefused(TrioMQError):
    """A broker does not check messages by the condition that was given."""

    def __init__(self, sql: str, reason: str) -> None:
        super().__init__(sql, reason)
        self.sql = sql
        self.reason = reason

    def __str__(self) -> str:
        """Name the broker's reason and setting."""
        return (
            f"--filter {self.sql!r} cannot be used: {self.reason}; write a condition such as"
            " \"price > 10 AND region = 'eu'\", and set enablePropertyFilter=true on the brokers"
        )


class MessageNowhere(TrioMQError):
    """No broker has the message that was to be explained."""

    def __init__(self, word: str, searched: Iterable[str], topic: str | None) -> None:
        super().__init__(word, tuple(searched), topic)
        self.word = word
        self.searched = tuple(searched)
        self.topic = topic

    def __str__(self) -> str:
        """Name the places that were searched."""
        fix = "check spelling and topic" if self.topic is not None else "check the spelling"
        return (
            f"no broker has a message {self.word!r}; looked in {', in '.join(self.searched)}:"
            f" {fix}; it may also be older than the brokers' retention"
        )


class TraceNotFound(TrioMQError):
    """The brokers have no trace of a message."""

    def __init__(self, key: str, topic: str) -> None:
        super().__init__(key, topic)
        self.key = key
        self.topic = topic

    def __str__(self) -> str:
        """Name what must be switched on."""
        return (
            f"topic {self.topic!r} has no trace of id or key {self.key!r}: clients trace with"
            " ClientSettings(trace=True) (Java: enableTrace) and send it within 5 s; it may also be"
            " older than the brokers' retention"
        )


class TraceTopicMissing(TrioMQError):
    """No broker has the topic for message traces."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        """Name the broker's setting."""
        return (
            f"no broker has the topic {self.topic!r} for message traces: set traceTopicEnable=true"
            " on a broker and restart it, or create it with `mqadmin topic create -c CLUSTER -t"
            f" {self.topic}`; then let clients trace (ClientSettings(trace=True), Java:"
            " enableTrace)"
        )


class UserExists(TrioMQError):
    """A broker has a user of that name."""

    def __init__(self, name: str, broker: str) -> None:
        super().__init__(name, broker)
        self.name = name
        self.broker = broker

    def __str__(self) -> str:
        """Name the command that changes it."""
        return (
            f"{self.broker} has user {self.name!r} already: change it with `mqadmin user update`,"
            " or choose another name"
        )


class SubjectMissing(TrioMQError):
    """No asked broker has that user, or rules about it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        """Name the command that makes it."""
        return f"no broker that was asked has {self.what}: {self.fix}"


class NoBrokerAnswered(TrioMQError):
    """Every asked broker failed; ``reasons`` maps each broker to its failure."""

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


class NotConfirmed(TrioMQError):
    """The user did not confirm a command that deletes or sends."""

    def __str__(self) -> str:
        """Say that nothing was done."""
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
