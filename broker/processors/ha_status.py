"""How replication is doing: GET_BROKER_HA_STATUS (907), for ``mqadmin broker replication``.

Source: store/ha/DefaultHAService.java#getRuntimeInfo,
broker/processor/AdminBrokerProcessor.java#getBrokerHaStatus.
"""

from __future__ import annotations

import attrs
import trio

from triomq.broker.replication.master import ReplicationMaster
from triomq.broker.replication.slave import ReplicationSlave
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.bodies.cluster import HaClientState, HaConnectionState, HaStatus
from triomq.remoting.server.requests import Request, Response


@attrs.define(eq=False)
class HaStatusRequests:
    """The handler; a broker has either slaves or a master."""

    store: MessageStore
    master: ReplicationMaster | None
    slave: ReplicationSlave | None

    def status(self, request: Request) -> Response:
        """Return a master's slaves and their lag in bytes, or a slave's master and progress."""
        if self.slave is not None:
            return Response(body=HaStatus(master=False, client=self._client(self.slave)).encode())
        assert self.master is not None
        return Response(body=self._slaves(self.master).encode())

    def _slaves(self, master: ReplicationMaster) -> HaStatus:
        end, now = self.store.appended.value, trio.current_time()
        connections = []
        for connection in master.connections:
            link = connection.link
            replica = master.replicas.replicas.get(link)
            if replica is None or link.next_offset is None:
                continue
            connections.append(
                HaConnectionState(
                    address=link.peer,
                    slave_ack_offset=link.acknowledged,
                    diff=end - link.acknowledged,
                    in_sync=master.replicas.is_in_sync(replica, end, now),
                    transferred_bytes_per_second=connection.rate.per_second(
                        connection.bytes_sent, now
                    ),
                    transfer_from=link.next_offset,
                )
            )
        return HaStatus(
            master=True,
            master_log_max_offset=end,
            in_sync_slave_count=sum(state.in_sync for state in connections),
            connections=connections,
        )

    def _client(self, slave: ReplicationSlave) -> HaClientState:
        link, now = slave.link, trio.current_time()
        wall_ms = self.store.clock()
        return HaClientState(
            master_address=slave.master.ha or "",
            transferred_bytes_per_second=slave.rate.per_second(slave.bytes_received, now),
            max_offset=self.store.appended.value,
            last_read_timestamp=wall_ms - round((now - link.heard) * 1000)
            if link is not None
            else 0,
            last_write_timestamp=wall_ms - round((now - link.wrote) * 1000)
            if link is not None
            else 0,
            master_flush_offset=0,
        )
