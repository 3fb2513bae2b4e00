"""`GroupConsumer`: what push and pull consumers have in common as objects."""

from __future__ import annotations

from triomq.client.arguments import check_settings
from triomq.client.config import ConsumerSettings
from triomq.client.consumer.membership import Membership
from triomq.client.errors import NotRunning
from triomq.client.lifetime import Lifetime
from triomq.client.names import check_group
from triomq.remoting.protocol.bodies.route import MessageQueue


class GroupConsumer(Lifetime):
    """A member of a consumer group, running or not."""

    def __init__(self, group: str, settings: ConsumerSettings | None) -> None:
        self.group = check_group(group)
        self.settings = check_settings(settings, ConsumerSettings)
        self._membership: Membership | None = None

    def __repr__(self) -> str:
        state = f"owns {len(self._membership.fetcher.assignments)} queues" if self._membership else "not running"
        return f"<{type(self).__name__} of {self.group}: {state}>"

    @property
    def client_id(self) -> str:
        """The name under which the brokers know this member."""
        return self._member().session.client_id

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer owns now, sorted; those of a push consumer include its retry queues."""
        return tuple(sorted(self._member().fetcher.assignments.copy()))  # the façades ask from other threads

    async def wait_assigned(self) -> None:
        """Wait until this member has its first share of the queues (which may be none, if there are more members than queues).

        Errors: `NotRunning` outside of the `async with` block, and when it ends before there was a share.
        """
        await self._member().rebalancer.wait_balanced()

    def _member(self) -> Membership:
        if self._membership is None:
            raise NotRunning("this consumer is not running: use it inside `async with`")
        return self._membership
