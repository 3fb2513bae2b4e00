"""Which controllers there are, and how one comes or goes.

The settings name the controllers that begin a group. From its first entry on the log says who they
are, and since the first change also where they listen.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from triomq.namesrv.controller.command_log import CommandLog
from triomq.namesrv.controller.controller_settings import PEERS_MAX, Peer
from triomq.namesrv.controller.raft.configuration import ConfigurationChange
from triomq.namesrv.controller.raft.events import RefusalReason
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode

CHANGE_SECONDS = 2.0
"""for an earlier change to end, and for a new controller to get the log: kilobytes"""
PAUSE_SECONDS = 0.05
_WAITS = (RefusalReason.CHANGE_IN_PROGRESS, RefusalReason.NOT_CAUGHT_UP, RefusalReason.BUSY)


@attrs.define(eq=False)
class ControllerMembers:
    """``named``: the controllers of the settings, this one included."""

    own: Peer
    named: Sequence[Peer]
    log: CommandLog

    def current(self) -> tuple[Peer, ...]:
        """Return the controllers, as this one has the log; those without a known address are left
        out.
        """
        configuration = self.log.configuration
        if not configuration.voters:
            return tuple(self.named)
        addresses = self._addresses()
        return tuple(Peer(one, addresses[one]) for one in configuration.members if one in addresses)

    def _addresses(self) -> dict[str, str]:
        return {peer.id: peer.address for peer in self.named} | self.log.configuration.addresses

    def difference(self) -> str:
        """Return how the settings differ from the log, empty if they do not."""
        current = self.current()
        if {*current} == {*self.named}:
            return ""
        return (
            f"controllerDLegerPeers names {_list(self.named)}, and the log {_list(current)}: the"
            " log counts. Write its controllers into the settings; `mqadmin controller add` and"
            " `controller remove` change the log"
        )

    async def add(self, peer: Peer) -> None:
        """Let a controller follow, and vote when it has the log. Again is the same as once.

        Raises: Rejected. With SYSTEM_BUSY it may follow already, and is to be added again.
        Checkpoint: always.
        """
        current = {one.id: one for one in self.current()}
        if current.get(peer.id, peer) != peer:
            raise _invalid(
                f"controller {peer.id} listens on {current[peer.id].address}: remove it first"
            )
        same = [one.id for one in current.values() if one.address == peer.address and one != peer]
        if same:
            raise _invalid(f"{peer.address} is the address of controller {same[0]}")
        if peer.id not in current and len(current) >= PEERS_MAX:
            raise _invalid(f"there are {PEERS_MAX} controllers, no more are allowed: remove one")
        if peer.id not in self.log.configuration.members:
            await self._change(ConfigurationChange.ADD_LEARNER, peer)
        if peer.id in self.log.configuration.learners:
            await self._change(ConfigurationChange.PROMOTE, peer)
        await self.log.confirm_lead()

    async def remove(self, node_id: str) -> None:
        """Let a controller vote no more. Raises: Rejected. Checkpoint: always."""
        members = self.log.configuration.members
        if node_id not in members:
            raise _invalid(f"no controller is {node_id}: they are {', '.join(members)}")
        await self._change(ConfigurationChange.REMOVE, Peer(node_id, ""))

    async def _change(self, change: ConfigurationChange, peer: Peer) -> None:
        addresses = self._addresses()
        if change is ConfigurationChange.ADD_LEARNER:
            addresses[peer.id] = peer.address
        until = trio.current_time() + CHANGE_SECONDS
        while True:
            reason = await self.log.change_configuration(change, peer.id, addresses)
            if reason is None:
                return
            if reason not in _WAITS or trio.current_time() >= until:
                break
            await trio.sleep(PAUSE_SECONDS)
        if reason is RefusalReason.NOT_CAUGHT_UP:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"controller {peer.id} follows and does not vote yet, since it lacks the log: start"
                f" it at {peer.address} with controllerDLegerPeers that name it and the others, and"
                " add it again",
            )
        raise Rejected(ResponseCode.SYSTEM_BUSY, reason.value)


def _list(peers: Sequence[Peer]) -> str:
    return ";".join(f"{one.id}-{one.address}" for one in sorted(peers, key=lambda one: one.id))


def _invalid(remark: str) -> Rejected:
    return Rejected(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
