"""Rates and counts of topics and groups, summed over brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from triomq.client.admin.answers import read_body
from triomq.client.core.errors import BrokerError
from triomq.remoting.protocol.bodies.offsets import BrokerStats, StatsItem
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.admin import BrokerStatsHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


async def summed_item(
    admin: Admin, brokers: Mapping[str, str], name: str, key: str, silent: dict[str, str]
) -> tuple[float, int]:
    """Return the rate per second and the count of 24 hours over all brokers.

    A broker without such a counter refuses the request.
    """
    header = BrokerStatsHeader(name, key)

    async def ask(broker: str) -> BrokerStats:
        answer = await admin.ask(brokers[broker], RequestCode.VIEW_BROKER_STATS_DATA, header)
        return read_body(BrokerStats, answer)

    answers = await admin.for_each(brokers, ask)
    for broker, error in answers.failures.items():
        if not isinstance(error, BrokerError):
            silent[broker] = str(error)
    stats = answers.values.values()
    return sum(some.minute.tps for some in stats), sum(map(day_of, stats))


def day_of(stats: BrokerStats) -> int:
    """Return the count of the day; soon after a broker's start, of the hour or the minute."""
    windows: tuple[StatsItem, ...] = (stats.day, stats.hour, stats.minute)
    return next((window.sum for window in windows if window.sum), 0)
