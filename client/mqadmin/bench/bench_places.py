"""Topics and groups of a benchmark: made for it and deleted after it, or checked before it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import UsageError
from triomq.client.admin.cluster_view import topic_kind
from triomq.client.admin.missing_brokers import BrokerLeft
from triomq.client.core.errors import TrioMQError
from triomq.client.mqadmin.core.places import ask_each
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.topic import DeleteGroupHeader
from triomq.remoting.protocol.names import DLQ_PREFIX, RETRY_PREFIX

PREFIX = "BENCH_"
CLEAN_UP_SECONDS = 10.0
"""twice the limit of one request: a broker that hangs must leave time for the name servers"""
NAMES_MAX = 5
"""names that a refusal lists"""
Failures = Mapping[str, TrioMQError]
"""of brokers, by address or name"""


@attrs.frozen
class OwnTopic:
    """A topic that was made for a run."""

    name: str
    missing: Mapping[str, str]
    """broker without a part of it, by name if it is not registered, else by address → why"""


def new_name() -> str:
    """Return the name of a topic or group that no other run has."""
    return f"{PREFIX}{secrets.token_hex(6)}"


async def check_writable(admin: Admin, topic: str) -> None:
    """Refuse a topic that groups consume, and those of retries, dead letters and the system.

    Raises: UsageError, RouteNotFound, NoBrokerAnswered.
    """
    if (kind := topic_kind(topic)) != "normal":
        raise UsageError(
            f"topic {topic} belongs to no application ({kind}): leave out -t for a new topic,"
            " or give --yes"
        )
    answers = await admin.topic_groups_by_broker(topic)
    groups = sorted({group for some in answers.some().values() for group in some})
    if groups:
        raise UsageError(
            f"topic {topic} has consumers that would get the benchmark's messages:"
            f" {_some(groups)}; leave out -t for a topic of its own, or give --yes"
        )
    if answers.failures:
        raise UsageError(
            f"whether topic {topic} has consumers is not known, since brokers do not answer:"
            f" {'; '.join(answers.reasons().values())}; leave out -t, or give --yes"
        )


async def check_group_free(admin: Admin, group: str) -> None:
    """Refuse a group that exists: its messages would be consumed here.

    Raises: UsageError, NoBrokerAnswered.
    """
    answers = await admin.groups()
    brokers = [name for name, groups in answers.some().items() if group in groups]
    if brokers:
        raise UsageError(
            f"group {group} exists (at {_some(brokers)}), and its messages would be consumed by the"
            " benchmark: leave out -g for a group of its own, or give --yes"
        )
    if answers.failures:
        raise UsageError(
            f"whether group {group} exists is not known, since brokers do not answer:"
            f" {'; '.join(answers.reasons().values())}; leave out -g, or give --yes"
        )


def _some(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - NAMES_MAX} others" if len(found) > NAMES_MAX else ""
    return ", ".join(found[:NAMES_MAX]) + more


@asynccontextmanager
async def own_topic(
    admin: Admin, queues: int, warn: Callable[[str], object], *, keep: bool
) -> AsyncIterator[OwnTopic]:
    """Create a topic at all masters, and delete it after the block, also after Ctrl-C.

    A cancellation must come from inside the block of ``admin``, whose connections delete it.
    ``queues``: of each broker. ``warn`` gets a line about what could not be deleted.

    Raises: NoBrokerAnswered if no broker has created it.
    """
    topic = new_name()

    async def delete() -> Failures:
        return (await admin.delete_topic(topic)).failures

    # Without a name server nothing is created, and nothing is to be deleted.
    absent = await _absent(admin)
    try:
        answers = await admin.update_topic(topic, read_queues=queues, write_queues=queues)
        answers.some()
        yield OwnTopic(
            topic,
            {
                error.broker.name if isinstance(error, BrokerLeft) else label: str(error)
                for label, error in answers.failures.items()
            },
        )
    finally:
        if not keep:
            what, fix = f"topic {topic}", f"topic delete -t {topic}"
            await _clean(admin, what, fix, warn, delete, absent)


@asynccontextmanager
async def own_group(admin: Admin, warn: Callable[[str], object]) -> AsyncIterator[str]:
    """Return a new group, which is deleted with its offsets and retry topics after the block."""
    group = new_name()

    async def delete() -> Failures:
        addresses = [broker.address for broker in await admin.brokers(masters_only=True)]
        header = DeleteGroupHeader(group, True, True)
        code = RequestCode.DELETE_SUBSCRIPTIONGROUP
        failures = {**(await ask_each(admin, addresses, code, header)).failures}
        for topic in (RETRY_PREFIX + group, DLQ_PREFIX + group):
            failures |= (await admin.delete_topic(topic)).failures
        return failures

    absent = await _absent(admin)
    try:
        yield group
    finally:
        await _clean(admin, f"group {group}", f"group delete -g {group}", warn, delete, absent)


async def _absent(admin: Admin) -> set[str]:
    """Return the addresses of missing brokers: nothing of a run that begins now is there."""
    await admin.cluster()
    return {broker.address for broker in await admin.missing_brokers() or ()}


async def _clean(
    admin: Admin,
    what: str,
    fix: str,
    warn: Callable[[str], object],
    delete: Callable[[], Awaitable[Failures]],
    absent: Container[str],
) -> None:
    """Delete something even if the run is cancelled; warn about what is left.

    ``absent``: addresses of brokers that have nothing of it.
    """
    admin.limit_to(CLEAN_UP_SECONDS)
    reasons = [f"no answer within {CLEAN_UP_SECONDS:.0f} s"]
    with trio.move_on_after(CLEAN_UP_SECONDS, shield=True):
        try:
            reasons = [
                str(error)
                for error in (await delete()).values()
                if not (isinstance(error, BrokerLeft) and error.broker.address in absent)
            ]
        except TrioMQError as error:
            reasons = [str(error)]
    for why in dict.fromkeys(reasons):
        warn(f"{what} may be left: {why}; delete it with `mqadmin {fix} -c CLUSTER`")
