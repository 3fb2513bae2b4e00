"""What controllers, tools and brokers ask of a broker in controller mode: 1002, 1007, 1008, 906.

Source: broker/processor/AdminBrokerProcessor.java#getBrokerEpochCache, #notifyBrokerRoleChanged,
#exchangeBrokerHaInfo.
"""

from __future__ import annotations

import attrs
import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.processors.bodies import read_body
from triomq.broker.replication.epochs import OFFSET_MAX
from triomq.broker.roles.table_copy import TableCopy
from triomq.broker.roles.tenure import Tenure
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.address import format_address
from triomq.remoting.core.errors import Rejected, RemotingError
from triomq.remoting.protocol.bodies.controller import EpochEntries, EpochEntry
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.admin import ExchangeHaAddressHeader
from triomq.remoting.protocol.headers.controller import ElectMasterHeader, RoleChangedHeader
from triomq.remoting.server.requests import Request, Response

NEWS_SECONDS = 5.0
"""Longest wait for a copy of the tables. A master asks again after ``slaveTimeout`` (3 s); without
a limit its requests would fill the pool of a slave that cannot copy.
"""


HAND_OVER_SECONDS = 3.0


@attrs.define(eq=False)
class ControllerNotices:
    """Handlers; without a tenure this broker has no controllers."""

    config: BrokerConfig
    store: MessageStore
    tenure: Tenure | None
    copy: TableCopy | None
    """On a slave."""

    async def master_address(self, request: Request) -> Response:
        """Tell a slave where the HA port is; or, as a slave, take news of the master's tables.

        EXCHANGE_BROKER_HA_INFO (906). Raises: Rejected.
        """
        tenure = self._require_tenure()
        sent: ExchangeHaAddressHeader = request.header
        if sent.master_ha_address is None:
            if not tenure.is_master:
                return Response(header=ExchangeHaAddressHeader())
            ha_address = format_address(self.config.ha_ip, self.config.ha_port)
            end, address = self.store.appended.value, tenure.membership.address
            return Response(header=ExchangeHaAddressHeader(ha_address, end, address))
        if self.copy is None or sent.master_address != self.copy.master.remoting:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"{sent.master_address} is not the master of this broker"
            )
        with trio.move_on_after(NEWS_SECONDS) as limit:
            if request.body:
                await self.copy.take_commits(read_body(ConsumerOffsetTable, request.body))
            else:
                await self.copy.copy_now()
        if limit.cancelled_caught:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"the tables are not copied within {NEWS_SECONDS:g} s"
            )
        return Response(header=sent)

    def role_changed(self, request: Request) -> Response:
        """Take in which broker is the master: NOTIFY_BROKER_ROLE_CHANGED (1008). Raises: Rejected.

        Anybody may claim it, so only the controllers' own answer counts: they are asked at once.
        """
        tenure = self._require_tenure()
        notice: RoleChangedHeader = request.header
        known = tenure.membership.mastership
        if known is None or (known.epoch, known.set_epoch) < (
            notice.master_epoch or 0,
            notice.sync_state_set_epoch or 0,
        ):
            tenure.membership.ask_now()
        return Response()

    async def hand_over(self, request: Request) -> Response:
        """Have another member elected: CONTROLLER_ELECT_MASTER (1002), which in RocketMQ only
        controllers take.

        Unlike them the master lets the set have every message first. Raises: Rejected.
        """
        tenure, header = self._require_tenure(), request.header
        assert isinstance(header, ElectMasterHeader)
        if not tenure.is_master:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "this broker is not the master")
        with trio.move_on_after(HAND_OVER_SECONDS):
            try:
                await tenure.hand_over(header.broker_id)
            except (RemotingError, ValueError) as error:
                raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from error
        known = tenure.membership.mastership
        if known is None or known.epoch == tenure.mastership.epoch:
            raise Rejected(
                ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
                f"this broker is still the master: broker {header.broker_id} is not alive in its"
                " set, or no controller answers; see the log of this broker",
            )
        return Response()

    def epochs(self, _request: Request) -> Response:
        """Return the epochs of this log: GET_BROKER_EPOCH_CACHE (1007). Raises: Rejected."""
        tenure = self._require_tenure()
        entries = tenure.epochs.history.entries
        ends = [entry.start for entry in entries[1:]] + [OFFSET_MAX]
        body = EpochEntries(
            cluster_name=self.config.cluster_name,
            broker_name=self.config.broker_name,
            broker_id=self.config.broker_id,
            epoch_list=[
                EpochEntry(epoch=entry.number, start_offset=entry.start, end_offset=end)
                for entry, end in zip(entries, ends)
            ],
            max_offset=self.store.appended.value,
        )
        return Response(body=body.encode())

    def _require_tenure(self) -> Tenure:
        if self.tenure is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "this broker is not in controller mode")
        return self.tenure
