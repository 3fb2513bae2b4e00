"""Messages of Raft between controllers: requests with a code of our own, on the controllers' ports.

Each peer has a task and the newest message of each kind that waits for it, so a peer that hangs
holds a few messages and delays no other. A message that was not answered in time is lost, which
Raft expects, and its connection is closed: after a cut of the network, TCP would otherwise send
again only when its own pauses, of up to two minutes, are over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import attrs
import trio

from triomq.namesrv.controller.controller_settings import PEERS_MAX, Peer
from triomq.namesrv.controller.raft.messages import (
    AnyRaftMessage,
    RequestVote,
    RequestVoteAnswer,
)
from triomq.namesrv.controller.raft_wire import decode_message, encode_message
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.address import parse_address
from triomq.remoting.core.errors import Rejected, RemoteProtocolError, RemotingError
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.server.requests import Request, Response

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 1.0
"""for a message, connecting included; a controller answers before it writes anything"""
PAUSE_SECONDS = 0.1
"""before a peer is tried again that could not be reached"""


@attrs.define(eq=False)
class _Outbox:
    messages: dict[tuple[type, bool], AnyRaftMessage] = attrs.field(factory=dict)
    wake: trio.Event = attrs.field(factory=trio.Event)
    trouble: str = ""
    """Why the last message was lost, empty if it arrived."""


@attrs.define(eq=False, kw_only=True)
class PeerMessages:
    """Sends to the other controllers of a group, and takes what they send.

    ``current`` returns the controllers, this one included. ``receive``: called with sender and
    message; must not block.
    """

    group: str
    own: Peer
    current: Callable[[], Sequence[Peer]]
    receive: Callable[[str, AnyRaftMessage], None]
    connecting: ConnectorConfig
    lost: int = attrs.field(default=0, init=False)
    """Messages that no peer has answered."""
    _outboxes: dict[str, _Outbox] = attrs.field(factory=dict, init=False)
    _newcomers: dict[str, str] = attrs.field(factory=dict, init=False)
    """Id -> address of senders that this controller's log does not name (yet)."""
    _new_outbox: trio.Event = attrs.field(factory=trio.Event, init=False)

    def _address_of(self, peer_id: str) -> str | None:
        known = (peer.address for peer in self.current() if peer.id == peer_id)
        return next(known, self._newcomers.get(peer_id))

    def send(self, target: str, message: AnyRaftMessage) -> None:
        """Send a message soon, in place of an older one of its kind. Checkpoint: never."""
        if target == self.own.id or self._address_of(target) is None:
            return
        outbox = self._outboxes.get(target)
        if outbox is None:
            outbox = self._outboxes[target] = _Outbox()
            self._new_outbox.set()
        pre = isinstance(message, RequestVote | RequestVoteAnswer) and message.pre
        outbox.messages[type(message), pre] = message
        outbox.wake.set()

    def unreachable(self) -> dict[str, str]:
        """Return the peers whose last message was lost, and why."""
        found = {peer.id: self._outboxes.get(peer.id) for peer in self.current()}
        return {peer: one.trouble for peer, one in found.items() if one and one.trouble}

    def take(self, request: Request) -> Response:
        """Take a message of another controller: RAFT_MESSAGE.

        Raises: Rejected if it is not of this group, or not for this controller.
        """
        said = request.ext()
        sender = said.get("sender", self.own.id)
        if (said.get("group"), said.get("target")) != (self.group, self.own.id) or (
            not self._admit(sender, said.get("address", ""))
        ):
            others = sorted(peer.id for peer in self.current() if peer.id != self.own.id)
            raise Rejected(
                ResponseCode.CONTROLLER_INVALID_REQUEST,
                f"this is controller {self.own.id} of {self.group!r} with"
                f" {', '.join(others) or 'no other'}: check controllerDLegerGroup,"
                " controllerDLegerPeers and controllerDLegerSelfId of both controllers",
            )
        try:
            message = decode_message(request.body)
        except RemoteProtocolError as error:
            raise Rejected(ResponseCode.CONTROLLER_INVALID_REQUEST, str(error)) from None
        self.receive(sender, message)
        return Response()

    def _admit(self, sender: str, address: str) -> bool:
        """Return whether messages of a sender count. A controller that was added may lead before
        this one has the entry that adds it: then its address is noted, as it says itself.
        """
        if sender == self.own.id:
            return False
        if any(peer.id == sender for peer in self.current()):
            return True
        try:
            parse_address(address)
        except ValueError:
            return False
        self._newcomers.pop(sender, None)
        self._newcomers[sender] = address
        while len(self._newcomers) > PEERS_MAX:
            del self._newcomers[next(iter(self._newcomers))]
        return True

    async def run(self) -> None:
        """Send messages until cancelled: the task "raft-peers", with one task for each peer."""
        config = attrs.evolve(self.connecting, connect_seconds=ANSWER_SECONDS)
        started: set[str] = set()
        async with Connector(config) as connector, trio.open_nursery() as nursery:
            while True:
                for peer in self._outboxes.keys() - started:
                    started.add(peer)
                    nursery.start_soon(self._deliver, connector, peer, name=f"raft-peer {peer}")
                await self._new_outbox.wait()
                self._new_outbox = trio.Event()

    async def _deliver(self, connector: Connector, peer: str) -> None:
        outbox = self._outboxes[peer]
        while True:
            await outbox.wake.wait()
            outbox.wake = trio.Event()
            while outbox.messages:
                kind = next(iter(outbox.messages))
                before = outbox.trouble
                outbox.trouble = await self._try(connector, peer, outbox.messages.pop(kind))
                if outbox.trouble:
                    self.lost += 1
                    await trio.sleep(PAUSE_SECONDS)
                if outbox.trouble and not before:
                    _log.warning("controller %s does not answer: %s", peer, outbox.trouble)
                elif before and not outbox.trouble:
                    _log.info("controller %s answers again", peer)

    async def _try(self, connector: Connector, peer: str, message: AnyRaftMessage) -> str:
        """Send one message; return why it may not have arrived, empty if it has."""
        address = self._address_of(peer)
        if address is None:
            return "it was removed"
        command = Command(
            code=RequestCode.RAFT_MESSAGE,
            ext={
                "group": self.group,
                "sender": self.own.id,
                "address": self.own.address,
                "target": peer,
            },
            body=encode_message(message),
        )
        try:
            answer = await connector.invoke(address, command, timeout=ANSWER_SECONDS)
        except (RemotingError, ValueError) as error:
            connector.close_address(address)
            return str(error)
        if answer.code != ResponseCode.SUCCESS:
            return answer.remark or f"code {answer.code}"
        return ""
