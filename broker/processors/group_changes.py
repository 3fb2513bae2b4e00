"""What brokers of a group with ``enableSlaveActingMaster`` are told: NOTIFY_MIN_BROKER_ID_CHANGE (905), EXCHANGE_BROKER_HA_INFO (906), GET_TIMER_CHECK_POINT (60).

Source: broker/processor/AdminBrokerProcessor.java#notifyMinBrokerIdChange, #exchangeBrokerHaInfo.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from triomq.broker.replication.slave import ReplicationSlave
from triomq.broker.services.acting import ActingMaster
from triomq.broker.services.registration import Registration
from triomq.broker.services.table_copy import TableCopy
from triomq.remoting.errors import Rejected, RemotingError
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.protocol.bodies.timer import TimerCheckPoint
from triomq.remoting.protocol.bodies.topics import DataVersion
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.admin import ExchangeHaAddressHeader
from triomq.remoting.protocol.headers.route import MinBrokerIdChangeHeader
from triomq.remoting.server.handlers import Request, Response

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
"""What is said within so long leads to one look around: anybody can say it, and each look asks every name server."""
TELL_SECONDS = 10.0
"""A master that starts waits for our answer; what it has not heard of by then it takes from our table."""
NO_TIMERS = TimerCheckPoint(last_read_ms=0, last_flushed_position=0, last_queue_offset=0, master_queue_offset=0, data_version=DataVersion(-1, 0, 0))


@attrs.define(eq=False)
class GroupChanges:
    """The handlers; without the option all of them answer that their codes are unknown."""

    enabled: bool
    registration: Registration
    end: Callable[[], int]
    """Where the log ends."""
    slave: ReplicationSlave | None = None
    acting: ActingMaster | None = None
    copy: TableCopy | None = None
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    _told: trio.Event = attrs.field(factory=trio.Event, init=False)
    _telling: bool = attrs.field(default=False, init=False)
    """Whether a master is being told what consumers have committed here: one at a time, whoever says that he is one."""

    async def run(self) -> None:
        """The task "group-changes": look around at once, then once for all that was said during the pause."""
        while True:
            await self._told.wait()
            self._told = trio.Event()
            if self.acting is not None:
                self.acting.look_again()
            self.registration.announce_again()  # the answer says where the master is
            await trio.sleep(PAUSE_SECONDS)

    def _require(self, code: int) -> None:
        if not self.enabled:
            raise Rejected(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported (enableSlaveActingMaster is off)")

    def smallest_id(self, request: Request) -> Response:
        """A name server says that another broker has the smallest id; the name servers are asked whether that is so."""
        self._require(request.code)
        header: MinBrokerIdChangeHeader = request.header
        self._limit.log(
            logger, logging.INFO, "%s says that the smallest id of this group is %s (%s) now", request.connection.peer_text, header.min_broker_id, header.min_broker_addr
        )
        self._told.set()
        return Response()

    async def master_address(self, request: Request) -> Response:
        """Empty: a slave asks a master where its HA port is. Filled: a master that starts says so, and the slave hands over to it before it answers."""
        self._require(request.code)
        header: ExchangeHaAddressHeader = request.header
        settings = self.registration.settings
        if header.master_ha_address is None:
            if self.slave is not None:
                return Response(header=ExchangeHaAddressHeader())
            return Response(header=ExchangeHaAddressHeader(settings.ha_address, self.end(), settings.broker_address))
        if self.slave is None or self.acting is None or self.copy is None:
            return Response(header=ExchangeHaAddressHeader())
        await self.acting.hand_over()
        self.slave.master.update(header.master_ha_address, header.master_address)
        told = header.master_address is not None and await self._tell_commits(self.copy, header.master_address)
        # Without an address the master takes our table of offsets itself, as Java's does.
        return Response(header=ExchangeHaAddressHeader(header.master_ha_address, header.master_flush_offset, header.master_address if told else None))

    async def _tell_commits(self, copy: TableCopy, master: str) -> bool:
        """Tell the master what consumers have committed here; False if it does not know all of it.

        Anybody can say that he is the master, and each time costs a connection to where he says and up to `TELL_SECONDS`; so while one is told, others are
        answered at once, and take the table themselves.
        """
        if self._telling:
            await trio.lowlevel.checkpoint()
            self._limit.log(logger, logging.INFO, "%s says that it is the master while another one is told what consumers have committed here; it takes the table itself", master)
            return False
        self._telling = True
        try:
            with trio.fail_after(TELL_SECONDS):
                await copy.tell(self.registration.connector, master)
        except (RemotingError, trio.TooSlowError, ValueError) as error:
            reason = f"it took longer than {TELL_SECONDS:g} s" if isinstance(error, trio.TooSlowError) else error
            self._limit.log(logger, logging.WARNING, "cannot tell master %s what consumers have committed here: %s; it hears of it later", master, reason)
            return False
        finally:
            self._telling = False
        return True

    def timer_check_point(self, _request: Request) -> Response:
        """A Java master that starts asks its slaves how far their timers are, and does not serve without an answer. Ours is older than any that it may have itself."""
        return Response(body=NO_TIMERS.encode())
