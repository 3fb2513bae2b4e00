"""Names of the cluster that a shell completes: topics, groups, brokers, clusters.

A tab asks the cluster of the call (its context, ``-n`` or the environment) and waits for a second
at most. Nothing is said about failures: they are those of the command itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from triomq.client.admin.access import given_access
from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, Values
from triomq.client.admin.contexts import with_context
from triomq.client.core.errors import TrioMQError
from triomq.remoting.protocol.names import DLQ_PREFIX, RETRY_PREFIX

TAB_SECONDS = 1.0
ACCESS = ("namesrvAddr", "tls", "credentials", "context")


def kind_of(option: Option) -> str:
    """Return what an option names: ``topic``, ``group``, …; empty for all that has no list."""
    word, name = option.placeholder, option.name
    if word in ("TOPIC", "GROUP", "BROKER"):
        return word.lower()
    if name in ("brokerName", "broker") and word == "NAME":
        return "broker"
    if name in ("brokerAddr", "broker") and word == "ADDRESS":
        return "address"
    return "cluster" if name in ("clusterName", "cluster") and word == "NAME" else ""


def known_names(kind: str, given: dict[str, str], typed: str) -> Sequence[tuple[str, str]]:
    """Return names and what is worth knowing about them; empty if no server answers in time.

    ``given``: those of ``ACCESS`` that stand on the command line.
    """
    try:
        return trio.run(_asked, kind, Values({name: given.get(name) for name in ACCESS}), typed)
    except (TrioMQError, OSError):
        return ()


async def _asked(kind: str, values: Values, typed: str) -> Sequence[tuple[str, str]]:
    values = with_context(values)
    tls, credentials = given_access(values)
    found: Sequence[tuple[str, str]] = ()
    with trio.move_on_after(TAB_SECONDS):
        async with Admin(
            values.maybe_text("namesrvAddr"),
            timeout_seconds=TAB_SECONDS,
            tls=tls,
            credentials=credentials,
        ) as admin:
            found = await READERS[kind](admin, typed)
    return found


async def _topics(admin: Admin, typed: str) -> Sequence[tuple[str, str]]:
    hidden = () if typed.startswith("%") else (RETRY_PREFIX, DLQ_PREFIX)
    return [(name, "") for name in await admin.topics() if not name.startswith(hidden)]


async def _groups(admin: Admin, typed: str) -> Sequence[tuple[str, str]]:
    answers = await admin.groups()
    return [(name, "") for name in sorted(set().union(*answers.values.values()))]


async def _brokers(admin: Admin, typed: str) -> Sequence[tuple[str, str]]:
    return [(name, address) for name, address in (await admin.leaders()).items()]


async def _addresses(admin: Admin, typed: str) -> Sequence[tuple[str, str]]:
    return [(one.address, f"{one.name}:{one.id}") for one in await admin.brokers()]


async def _clusters(admin: Admin, typed: str) -> Sequence[tuple[str, str]]:
    return [(name, "") for name in sorted((await admin.cluster()).cluster_addr_table)]


READERS = {
    "topic": _topics,
    "group": _groups,
    "broker": _brokers,
    "address": _addresses,
    "cluster": _clusters,
}
