"""A ``triomq.SimpleConsumer`` for asyncio."""

# Written by `make docs` from the signatures in client/sdk/simple_consumer.py: change them instead.

from __future__ import annotations

from collections.abc import Iterable

from triomq import client
from triomq.aio.calls import awaited
from triomq.aio.receiving import SimpleConsumerBase
from triomq.client.core.config import ConsumerSettings
from triomq.client.receiving.offsets import ConsumeFrom, Start
from triomq.client.receiving.pop.durations import Duration
from triomq.client.receiving.subscribing import Subscriptions


class SimpleConsumer(SimpleConsumerBase):
    """A ``triomq.SimpleConsumer`` for asyncio.

    Methods have the names and parameters of ``triomq.SimpleConsumer``; see there.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        group: str,
        subscriptions: Subscriptions,
        ordered: bool = False,
        invisible: Duration = 60.0,
        consume_from: Start = ConsumeFrom.LAST,
        settings: ConsumerSettings | None = None,
    ) -> None:
        super().__init__(
            client.SimpleConsumer(
                namesrv,
                group=group,
                subscriptions=subscriptions,
                ordered=ordered,
                invisible=invisible,
                consume_from=consume_from,
                settings=settings,
            )
        )

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._target.group

    @property
    def settings(self) -> ConsumerSettings:
        """The settings as given, or the defaults."""
        return self._target.settings

    @property
    def client_id(self) -> str:
        """This member's name on the brokers."""
        return self._target.client_id

    @property
    def ordered(self) -> bool:
        """Whether each queue is consumed in its order."""
        return self._target.ordered

    @property
    def invisible(self) -> float:
        """Seconds for which a message is hidden if ``receive`` does not say otherwise."""
        return self._target.invisible

    subscribe = awaited(client.SimpleConsumer.subscribe)
    unsubscribe = awaited(client.SimpleConsumer.unsubscribe)
