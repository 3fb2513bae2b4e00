"""The options that name servers, and the servers that they choose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

import attrs

from triomq.client.admin.arguments import Option, UsageError, Values
from triomq.client.admin.errors import MasterMissing
from triomq.client.admin.missing_brokers import BrokerLeft, with_missing
from triomq.remoting.protocol.bodies.route import MASTER_ID

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.answers import Answers
    from triomq.client.mqadmin.core.result import Result
    from triomq.remoting.protocol.codes import RequestCode
    from triomq.remoting.protocol.command import Command

T = TypeVar("T")

MASTERS = (
    Option("-b, --brokerAddr ADDRESS", "at one broker, host:port"),
    Option("-c, --clusterName NAME", "at all masters of a cluster"),
)
BROKERS = (
    Option("-b, --brokerAddr ADDRESS", "one broker, host:port"),
    Option("-c, --clusterName NAME", "all brokers of a cluster"),
)
EVERYWHERE = (
    Option("-b, --brokerAddr ADDRESS", "at one broker, host:port"),
    Option("-c, --clusterName NAME", "at all brokers of a cluster, slaves too"),
)
PLACES = (MASTERS, BROKERS, EVERYWHERE)
"""a command with the options of one of these needs exactly one of them"""
CONTROLLERS = Option(
    "-a, --controllerAddress ADDRESSES", "controllers, 'host:9878;host2:9878'", required=True
)

NO_BROKERS = "no broker is registered at the name server; start one with `mqbroker -n ADDRESSES`"


async def chosen_brokers(admin: Admin, options: Values, *, masters_only: bool = True) -> list[str]:
    """Return the address of --brokerAddr, or those of the brokers of --clusterName.

    Raises: UsageError unless exactly one of the options is given, MasterMissing.
    """
    address, cluster = options.maybe_text("brokerAddr"), options.maybe_text("clusterName")
    if (address is None) == (cluster is None):
        raise UsageError("give exactly one of -b/--brokerAddr and -c/--clusterName")
    if address is not None:
        return [address]
    chosen = await admin.brokers(cluster, masters_only=masters_only)
    if not chosen:
        raise MasterMissing(str(cluster))
    return [broker.address for broker in chosen]


def chosen_controllers(options: Values) -> list[str]:
    """Return the controllers that were given. Raises: UsageError for none."""
    text = options.text("controllerAddress")
    found = [part.strip() for part in text.split(";") if part.strip()]
    if not found:
        raise UsageError("-a/--controllerAddress needs an address, host:port")
    return found


async def beside_missing(admin: Admin, options: Values, answers: Answers[T]) -> Answers[T]:
    """Add a failure for each master of --clusterName that was registered and is not any more."""
    cluster = options.maybe_text("clusterName")
    if cluster is None:
        return answers
    missing = await admin.missing_brokers(cluster) or ()
    lost = {one.address: one for one in missing if one.id == MASTER_ID}
    return with_missing(answers, {at: lost[at] for at in lost.keys() - answers.values.keys()})


async def naming_missing(admin: Admin, options: Values, result: Result) -> Result:
    """Add to a command's result each missing master of --clusterName that it does not name."""
    cluster = options.maybe_text("clusterName")
    if cluster is None or result.failures is None:
        return result
    missing = await admin.missing_brokers(cluster) or ()
    lost = {
        one.address: str(BrokerLeft(one))
        for one in missing
        if one.id == MASTER_ID and result.failures.keys().isdisjoint((one.address, one.name))
    }
    failures = {**result.failures, **lost}
    return attrs.evolve(result, failures=failures, asked=result.asked + len(lost))


async def ask_each(
    admin: Admin,
    addresses: Iterable[str],
    code: RequestCode,
    header: object | None = None,
    body: bytes = b"",
) -> Answers[Command]:
    """Send the same request to several servers.

    Raises: TrioMQError if no server answers.
    """
    answers = await admin.for_each(addresses, lambda target: admin.ask(target, code, header, body))
    answers.some()
    return answers
