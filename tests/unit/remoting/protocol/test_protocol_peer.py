"""The requesting side of a connection, played against a scripted other side."""

import pytest

from triomq.remoting.core.errors import FrameError, LocalProtocolError
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import (
    Command,
    decode_frame,
    encode_command,
    request,
    response_to,
)
from triomq.remoting.protocol.headers.offset import GetMaxOffsetHeader, OffsetResponseHeader
from triomq.remoting.protocol.peer import ClientPeer, PeerStatistics


def answer(data: bytes, offset: int) -> bytes:
    """Return the reply of a server to a request frame."""
    return encode_command(response_to(decode_frame(data[4:]), 0, OffsetResponseHeader(offset)))


def ask() -> Command:
    return request(30, GetMaxOffsetHeader("T", 0))


def test_replies_find_their_requests_in_any_order() -> None:
    peer: ClientPeer[str] = ClientPeer()
    first, first_data = peer.send(ask(), "first", deadline=4.0)
    second, second_data = peer.send(ask(), "second", deadline=4.5)
    assert (first.opaque, second.opaque, first.deadline) == (0, 1, 4.0)
    received = peer.receive(answer(second_data, 22) + answer(first_data, 11)[:10])
    assert [
        (pending.token, reply.header(OffsetResponseHeader).offset)
        for pending, reply in received.replies
    ] == [("second", 22)]
    received = peer.receive(answer(first_data, 11)[10:])
    assert [pending.token for pending, _ in received.replies] == ["first"]
    assert peer.statistics() == PeerStatistics(
        pending=0, sent=2, replied=2, late_replies=0, peer_requests=0
    )
    assert repr(peer) == "<ClientPeer 0 pending, 2 sent>"


def test_numbers_wrap_and_are_not_reused_while_live() -> None:
    peer: ClientPeer[None] = ClientPeer(first_opaque=2**31 - 1)
    live, _ = peer.send(ask(), None, deadline=9)
    wrapped, _ = peer.send(ask(), None, deadline=9)
    assert (live.opaque, wrapped.opaque) == (2**31 - 1, -(2**31))
    peer = ClientPeer(first_opaque=-1)
    one, _ = peer.send(ask(), None, deadline=9)
    two, _ = peer.send(ask(), None, deadline=9)
    assert (one.opaque, two.opaque) == (-1, 0)
    peer._next = 0xFFFFFFFF  # as after four thousand million requests
    three, _ = peer.send(ask(), None, deadline=9)
    assert three.opaque == 1
    assert peer.pending_count == 3


def test_requests_of_the_other_side_are_told_apart_by_the_flag() -> None:
    peer: ClientPeer[str] = ClientPeer()
    pending, data = peer.send(ask(), "mine", deadline=9)
    notice = encode_command(Command(40, opaque=pending.opaque, flag=2, ext={"consumerGroup": "G"}))
    received = peer.receive(notice + answer(data, 1))
    assert [command.code for command in received.requests] == [40]
    assert [one.token for one, _ in received.replies] == ["mine"]
    assert peer.statistics().peer_requests == 1


def test_one_way_requests_wait_for_nothing() -> None:
    peer: ClientPeer[None] = ClientPeer()
    command = decode_frame(peer.send_oneway(ask())[4:])
    assert command.is_oneway
    assert peer.pending_count == 0
    assert peer.next_deadline() is None


def test_late_and_duplicate_replies_are_counted() -> None:
    peer: ClientPeer[str] = ClientPeer()
    pending, data = peer.send(ask(), "gone", deadline=3)
    assert peer.give_up(pending.opaque) is pending
    assert peer.give_up(pending.opaque) is None
    assert peer.receive(answer(data, 1)).replies == []
    _, data = peer.send(ask(), "twice", deadline=3)
    assert len(peer.receive(answer(data, 1) + answer(data, 1)).replies) == 1
    assert peer.statistics().late_replies == 2


def test_expiry() -> None:
    peer: ClientPeer[str] = ClientPeer()
    for deadline in (5.0, 3.0, 4.0):
        peer.send(ask(), f"until {deadline:g}", deadline=deadline)
    assert peer.next_deadline() == 3.0
    assert peer.expire(2.9) == []
    assert [pending.token for pending in peer.expire(4.0)] == ["until 3", "until 4"]
    assert peer.next_deadline() == 5.0
    assert [pending.token for pending in peer.lose()] == ["until 5"]
    assert peer.lose() == []


def test_what_cannot_be_sent_is_not_remembered() -> None:
    peer: ClientPeer[None] = ClientPeer()
    with pytest.raises(LocalProtocolError):
        peer.send(Command(1, ext={"a": "\ud800"}), None, deadline=1)
    assert peer.pending_count == 0


def test_damaged_input_ends_the_connection() -> None:
    peer: ClientPeer[None] = ClientPeer(frame_max_bytes=1024)
    with pytest.raises(FrameError):
        peer.receive(b"\0\0\x08\0")
    with pytest.raises(FrameError):
        peer.receive(b"")


def test_a_binary_conversation() -> None:
    peer: ClientPeer[str] = ClientPeer()
    command = ask()
    command.serialize = SerializeType.ROCKETMQ
    _, data = peer.send(command, "binary", deadline=1)
    ((pending, reply),) = peer.receive(answer(data, 5)).replies
    assert (pending.token, reply.serialize) == ("binary", SerializeType.ROCKETMQ)
