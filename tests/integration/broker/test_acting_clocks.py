"""A slave whose clock is not that of its master acts for it: what was waiting comes in time.

Time is simulated.
"""

from __future__ import annotations

import pytest
import trio
from brokers import BrokerPeer
from pop_peer import acknowledge, pop
from simulated_cluster import BROKER_PORT, SimulatedCluster
from simulated_story import play_story

from triomq.remoting.client.connector import Connector
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.names import HALF_TOPIC

DAY = 86_400.0
WAIT = 30.0
"""Seconds for which messages are hidden, and delayed."""
LATE = 25.0
"""Longest time until the slave acts and another master has the message, in seconds."""
ACTING = {
    "enableSlaveActingMaster": True,
    "enableRemoteEscape": True,
    "syncBrokerMemberGroupPeriod": 500,
}


class Cast:
    """broker-a with a master and a slave, and the master of broker-b."""

    def __init__(self, cluster: SimulatedCluster, connector: Connector) -> None:
        self.cluster = cluster
        self.master, self.other = (
            BrokerPeer(connector, f"{cluster.services[name].address}:{BROKER_PORT}")
            for name in ("master", "other")
        )

    def jump(self, seconds: float) -> None:
        network = self.cluster.simulation.network
        network.machines[network.address("slave")].step_clock(seconds)

    async def begin(self) -> None:
        """Make topics, and let messages wait in each way."""
        for peer in (self.other, self.master):
            with trio.fail_after(60):
                while True:
                    try:
                        await peer.create_topic("T", 1)
                        break
                    except RemotingError:
                        await trio.sleep(0.5)
        await trio.sleep(5)  # the slave follows
        master = self.master
        await master.send("T", b"popped")
        assert len((await pop(master, poll_ms=5_000, invisible_ms=int(WAIT * 1000)))[1]) == 1
        await master.send("T", b"level", properties={"DELAY": "4"})
        await master.send("T", b"timed", properties={"TIMER_DELAY_SEC": f"{WAIT:.0f}"})
        await master.send("T", b"half", properties={"TRAN_MSG": "true", "PGROUP": "P"})
        await trio.sleep(2)

    async def come(self, count: int, seconds: float) -> list[bytes]:
        """Return what comes at the other master in a time."""
        found: list[bytes] = []
        end = trio.current_time() + seconds
        # No pop is cut off: the broker would give its messages to nobody.
        while len(found) < count and trio.current_time() < end:
            for each in (await pop(self.other, poll_ms=2_000, invisible_ms=60_000))[1]:
                each.handle = each.handle._replace(broker_name="broker-b")
                await acknowledge(self.other, each)
                found.append(each.body)
        return sorted(found)


@pytest.mark.parametrize(
    ("jump", "restarts"),
    [
        (-3_600.0, 2),
        (40 * DAY, 0),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in ((3_600.0, 0), (-3_600.0, 0), (-40 * DAY, 1))
        ),
    ],
)
def test_what_waits_comes_from_a_slave_with_another_clock(jump: float, restarts: int) -> None:
    """Timed messages have dates: they come when the slave's clock says so."""

    async def story(cast: Cast) -> None:
        await cast.begin()
        cast.cluster.crash("master", power=False)
        for _ in range(restarts):
            await trio.sleep(10)
            await cast.cluster.stop("slave")
            cast.cluster.start("slave")
        in_time = [b"level", b"popped", *([b"timed"] if jump > 0 else [])]
        assert await cast.come(len(in_time), WAIT + LATE) == in_time
        assert await cast.come(1, WAIT) == []
        halves = (await cast.other.pull(HALF_TOPIC)).messages
        assert {each.body for each in halves} == {b"half"}
        cast.jump(-jump)
        assert await cast.come(1, WAIT + LATE) == [b"timed"] * (jump < 0)

    def build(cluster: SimulatedCluster) -> None:
        cluster.add_namesrv("namesrv")
        cluster.add_broker("master", brokerId=0, brokerRole="ASYNC_MASTER", **ACTING)
        cluster.add_broker("other", brokerId=0, brokerName="broker-b")
        cluster.add_broker("slave", brokerId=1, brokerRole="SLAVE", **ACTING)
        network = cluster.simulation.network
        network.machines[network.address("slave")].step_clock(jump)

    async def play(cluster: SimulatedCluster, connector: Connector) -> None:
        await story(Cast(cluster, connector))

    play_story(build, play, acting=True)
