"""Topics and groups of a benchmark: made for it and deleted after it, or checked before it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import UsageError
from triomq.client.admin.cluster_view import topic_kind
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


@attrs.frozen
class OwnTopic:
    """A topic that was made for a run."""

    name: str
    missing: Mapping[str, str]
    """address of a broker without a part of it → why"""


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

    async def delete() -> dict[str, str]:
        return (await admin.delete_topic(topic)).reasons()

    await admin.cluster()  # without a name server nothing is created, and nothing is to be deleted
    try:
        answers = await admin.update_topic(topic, read_queues=queues, write_queues=queues)
        answers.some()
        yield OwnTopic(topic, answers.reasons())
    finally:
        if not keep:
            await _clean(admin, f"topic {topic}", f"topic delete -t {topic}", warn, delete)


@asynccontextmanager
async def own_group(admin: Admin, warn: Callable[[str], object]) -> AsyncIterator[str]:
    """Return a new group, which is deleted with its offsets and retry topics after the block."""
    group = new_name()

    async def delete() -> dict[str, str]:
        addresses = [broker.address for broker in await admin.brokers(masters_only=True)]
        header = DeleteGroupHeader(group, True, True)
        code = RequestCode.DELETE_SUBSCRIPTIONGROUP
        reasons = (await ask_each(admin, addresses, code, header)).reasons()
        for topic in (RETRY_PREFIX + group, DLQ_PREFIX + group):
            reasons |= (await admin.delete_topic(topic)).reasons()
        return reasons

    try:
        yield group
    finally:
        await _clean(admin, f"group {group}", f"group delete -g {group}", warn, delete)


async def _clean(
    admin: Admin,
    what: str,
    fix: str,
    warn: Callable[[str], object],
    delete: Callable[[], Awaitable[dict[str, str]]],
) -> None:
    """Delete something even if the run is cancelled; warn about what is left."""
    admin.limit_to(CLEAN_UP_SECONDS)
    reasons = {"": f"no answer within {CLEAN_UP_SECONDS:.0f} s"}
    with trio.move_on_after(CLEAN_UP_SECONDS, shield=True):
        try:
            reasons = await delete()
        except TrioMQError as error:
            reasons = {"": str(error)}
    for why in dict.fromkeys(reasons.values()):
        warn(f"{what} may be left: {why}; delete it with `mqadmin {fix} -c CLUSTER`")
