"""Which broker a consumer should pull from next, and whether a slave serves pulls.

A master sends consumers that are far behind to a slave if ``slaveReadEnable`` says that slaves
serve pulls; the settings of their group name the slave. A slave sends consumers back to the master
when they are near the end of the log, unless the master is down: then it serves them like a master,
long polls included. Java's slave does not check whether its master is there, and lets clients pull
again at once while the master is down.

Source: broker/processor/PullMessageProcessor.java, DefaultPullMessageResultHandler.java.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.route import MASTER_ID


@attrs.define(eq=False)
class SlaveReads:
    """``master_alive`` is None on a master; ``parted`` returns whether a slave's log is another one
    than its master's.
    """

    enabled: bool = False
    master_alive: Callable[[], bool] | None = None
    parted: Callable[[], bool] = lambda: False

    def refuses(self) -> bool:
        """Return whether this broker is a slave that serves no pulls."""
        return self.master_alive is not None and (not self.enabled or self.parted())

    def suggestion(self, group: SubscriptionGroupConfig, far_behind: bool) -> int:
        """Return the id of the broker to pull from next."""
        if not self.enabled:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if far_behind else group.broker_id

    def back_to_master(self, far_behind: bool) -> bool:
        """Return whether a consumer of this slave should go to the master now."""
        return self.master_alive is not None and not far_behind and self.master_alive()
