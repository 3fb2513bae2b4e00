"""ControllerMembership: this broker at its controllers.

It gets an id for ever, says that it is alive, and learns who the master of its group is.

::

    join: id (1012, 1013) ─▶ register (1003) ─┬ a master is alive: follow it
                                              └ none: heartbeat, then ask for an election (1002)
    run:  heartbeat (904) to all controllers; ask the leader for master and set (1004)

A controller also tells each broker of a change (1008); a notice that is lost costs one period.
Nothing here changes a role: whoever waits for ``changed`` does.

Source: broker/controller/ReplicasManager.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.roles.controllers import CALL_SECONDS, Controllers
from triomq.broker.roles.identity import IdentityFile
from triomq.broker.store.opening import wall_clock_ms
from triomq.remoting.core.errors import Rejected, RemotingError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.bodies.controller import ElectMasterBody, SyncStateData, SyncStateSet
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.fastjson import dumps
from triomq.remoting.protocol.headers.controller import (
    AlterSyncStateSetHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdHeader,
    ElectMasterHeader,
    ElectMasterResponseHeader,
    NextBrokerIdHeader,
    NextBrokerIdResponseHeader,
    RegisterToControllerHeader,
    RegisterToControllerResponseHeader,
    ReplicaInfoHeader,
    ReplicaInfoResponseHeader,
)
from triomq.remoting.protocol.headers.registration import BrokerHeartbeatHeader

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.5


@attrs.frozen(kw_only=True)
class Mastership:
    """Who is master, and the set that the controllers had then."""

    master_id: int
    address: str
    epoch: int
    members: frozenset[int]
    set_epoch: int


@attrs.frozen
class LogProgress:
    """What a heartbeat says of the log; elections prefer the newest epoch, then the longest log."""

    epoch: int = -1
    log_end: int = -1
    confirmed: int = -1


@attrs.define(eq=False)
class ControllerMembership:
    """One broker as a member of its group. ``address`` is where clients reach it."""

    config: BrokerConfig
    address: str
    controllers: Controllers
    identity: IdentityFile
    broker_id: int = attrs.field(default=0, init=False)
    mastership: Mastership | None = attrs.field(default=None, init=False)
    changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set, and replaced, when another epoch has begun."""
    on_set: Callable[[frozenset[int], int], None] | None = attrs.field(default=None, init=False)
    """On a master: called with a newer set of its epoch."""
    on_heard: Callable[[float], None] | None = attrs.field(default=None, init=False)
    """On a master: called with when the question was sent that the leader has answered with this
    broker as the master.
    """
    on_size: Callable[[int], None] | None = attrs.field(default=None, init=False)
    """On a master: called with the number of brokers of the group."""
    addresses: dict[int, str] = attrs.field(factory=dict, init=False)
    """On a master: where the brokers of the group are, by their ids."""
    progress: Callable[[], LogProgress] = attrs.field(default=LogProgress, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    # Joining

    async def join(self) -> None:
        """Return when this broker has an id and is registered. Raises: StoreDamaged, OSError."""
        while True:
            try:
                self.broker_id = self.identity.load() or await self._apply()
                await self._register()
            except (RemotingError, ValueError) as error:
                self._limit.warning(
                    logger, "cannot join the group of %s yet: %s", self.config.broker_name, error
                )
                await trio.sleep(RETRY_SECONDS)
            else:
                return

    async def _apply(self) -> int:
        """Get an id. Raises: RemotingError, OSError."""
        cluster, name = self.config.cluster_name, self.config.broker_name
        application = self.identity.application()
        if application is None:
            answer = await self.controllers.call(
                RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NextBrokerIdHeader(cluster, name)
            )
            found = answer.header(NextBrokerIdResponseHeader).next_broker_id or 1
            application = found, f"{self.address};{wall_clock_ms()}"
            self.identity.note_application(*application)
        broker_id, check_code = application
        try:
            await self.controllers.call(
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                ApplyBrokerIdHeader(cluster, name, broker_id, check_code),
            )
        except Rejected:
            self.identity.forget_application()  # another broker was faster: ask again
            raise
        self.identity.save(broker_id)
        logger.info("the controllers have given this broker the id %d", broker_id)
        return broker_id

    async def _register(self) -> None:
        """Say that this process has started. Raises: RemotingError, ValueError."""
        header = RegisterToControllerHeader(
            self.config.cluster_name, self.config.broker_name, self.broker_id, self.address
        )
        answer = await self.controllers.call(RequestCode.CONTROLLER_REGISTER_BROKER, header)
        found = answer.header(RegisterToControllerResponseHeader)
        if found.master_broker_id is not None and found.master_address:
            self._note_answer(
                found.master_broker_id, found.master_address, found.master_epoch, answer
            )
            return
        leader = self.controllers.leader or await self.controllers.find_leader()
        await self.controllers.caller.invoke(leader, self._heartbeat(), timeout=CALL_SECONDS)
        await self._elect()

    async def _elect(self, successor: int | None = None) -> None:
        """Ask for a master; without a living member of the set there is none for now.

        ``successor``: it shall be this broker, although the present master lives.
        Raises: RemotingError, ValueError.
        """
        header = ElectMasterHeader(
            self.config.cluster_name,
            self.config.broker_name,
            self.broker_id if successor is None else successor,
            successor is not None,
        )
        try:
            answer = await self.controllers.call(
                RequestCode.CONTROLLER_ELECT_MASTER,
                header,
                accept=ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            )
        except Rejected as error:
            self._limit.warning(logger, "the controllers elect no master now: %s", error)
            return
        found = answer.header(ElectMasterResponseHeader)
        if found.master_broker_id is None or not found.master_address:
            return
        body = ElectMasterBody.decode(bytes(answer.body)) if answer.body else ElectMasterBody()
        self.note(
            Mastership(
                master_id=found.master_broker_id,
                address=found.master_address,
                epoch=found.master_epoch or 0,
                members=body.sync_state_set or frozenset({found.master_broker_id}),
                set_epoch=found.sync_state_set_epoch or 0,
            )
        )

    # Staying

    def note(self, announced: Mastership) -> None:
        """Take in what a controller says; what is older does not count. Checkpoint: never."""
        known = self.mastership
        if known is None or announced.epoch > known.epoch:
            logger.info(
                "broker %d (%s) is master in epoch %d; this is broker %d",
                announced.master_id,
                announced.address,
                announced.epoch,
                self.broker_id,
            )
            self.mastership = announced
            event, self.changed = self.changed, trio.Event()
            event.set()
        elif announced.epoch == known.epoch and announced.set_epoch > known.set_epoch:
            self.mastership = announced
            if self.on_set is not None:
                self.on_set(announced.members, announced.set_epoch)

    async def hand_over(self, successor: int | None = None) -> None:
        """Have another member of the set elected, if this broker is the master and one lives.

        ``successor``: that one. The caller sets the deadline. Raises: RemotingError, ValueError.
        """
        await self._poll()  # for the present set
        known = self.mastership
        others = () if known is None else sorted(known.members - {self.broker_id})
        for broker_id in others:
            if self.mastership is known and successor in (None, broker_id):
                await self._elect(broker_id)

    def ask_now(self) -> None:
        """Ask the controllers at once. Checkpoint: never."""
        self._wake.set()

    async def run(self) -> None:
        """Run the tasks "controller-heartbeat" and "controller-poll"."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_heartbeats, name="controller-heartbeat")
            nursery.start_soon(self._run_polls, name="controller-poll")

    async def _run_heartbeats(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                for address in self.controllers.addresses:
                    nursery.start_soon(self._beat, address)
                await trio.sleep(self.config.replication.alive_ms / 1000)

    async def _beat(self, address: str) -> None:
        seconds = self.config.replication.alive_timeout_ms / 1000
        try:
            await self.controllers.caller.oneway(address, self._heartbeat(), timeout=seconds)
        except RemotingError as error:
            self._limit.warning(logger, "controller %s gets no heartbeat: %s", address, error)

    def _heartbeat(self) -> Command:
        settings, progress = self.config.replication.controller, self.progress()
        header = BrokerHeartbeatHeader(
            cluster_name=self.config.cluster_name,
            broker_addr=self.address,
            broker_name=self.config.broker_name,
            broker_id=self.broker_id,
            heartbeat_timeout_ms=settings.heartbeat_timeout_ms,
            epoch=progress.epoch,
            max_offset=progress.log_end,
            confirm_offset=progress.confirmed,
            election_priority=settings.priority,
        )
        return request(RequestCode.BROKER_HEARTBEAT, header)

    async def _run_polls(self) -> None:
        period = self.config.replication.controller.poll_ms / 1000
        while True:
            try:
                await self._poll()
            except (RemotingError, ValueError) as error:
                self._limit.warning(logger, "the controllers do not say who is master: %s", error)
            with trio.move_on_after(period):
                await self._wake.wait()
            self._wake = trio.Event()

    async def _poll(self) -> None:
        """Ask for master and set. Raises: RemotingError, ValueError."""
        asked_at = trio.current_time()
        answer = await self.controllers.call(
            RequestCode.CONTROLLER_GET_REPLICA_INFO, ReplicaInfoHeader(self.config.broker_name)
        )
        found = answer.header(ReplicaInfoResponseHeader)
        if found.master_broker_id is None or not found.master_address:
            await self._elect()
            return
        self._note_answer(found.master_broker_id, found.master_address, found.master_epoch, answer)
        known = self.mastership
        if (
            known is not None
            and (found.master_broker_id, found.master_epoch) == (self.broker_id, known.epoch)
            and self.on_heard is not None
        ):
            self.on_heard(asked_at)
            await self._count()

    async def _count(self) -> None:
        """Find out how many brokers the group has. Raises: RemotingError, ValueError."""
        name = self.config.broker_name
        answer = await self.controllers.call(
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=dumps([name])
        )
        replicas = SyncStateData.decode(bytes(answer.body)).replicas_info_table.get(name)
        if replicas is not None and self.on_size is not None:
            brokers = replicas.in_sync_replicas + replicas.not_in_sync_replicas
            self.addresses = {one.broker_id: one.broker_address for one in brokers}
            self.on_size(len(brokers))

    def _note_answer(
        self, master_id: int, address: str, epoch: int | None, answer: Command
    ) -> None:
        found = SyncStateSet.decode(bytes(answer.body)) if answer.body else SyncStateSet()
        self.note(
            Mastership(
                master_id=master_id,
                address=address,
                epoch=epoch or 0,
                members=found.ids,
                set_epoch=found.epoch,
            )
        )

    # The set

    async def propose(self, members: frozenset[int], set_epoch: int) -> tuple[frozenset[int], int]:
        """Ask for another set (1001); return the new one and its epoch.

        Raises: Rejected: nothing has changed; RemotingError: it may be changed.
        """
        known = self.mastership
        assert known is not None
        header = AlterSyncStateSetHeader(self.config.broker_name, self.broker_id, known.epoch)
        try:
            answer = await self.controllers.call(
                RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
                header,
                SyncStateSet(members, set_epoch).encode(),
            )
            found = answer.header(AlterSyncStateSetResponseHeader).new_sync_state_set_epoch
        except Rejected:
            self.ask_now()  # the controllers have another master, or another set
            raise
        except ValueError as error:
            raise RemotingError(str(error)) from error
        return members, found or set_epoch + 1
