"""Frames come out whole or not at all; a damaged stream is refused at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triomq.remoting.core.errors import FrameError, RemoteProtocolError
from triomq.remoting.protocol.framing import FRAME_BYTES_MAX, FrameBuffer, split_frame


def framed(header: bytes, body: bytes = b"") -> bytes:
    inside = len(header).to_bytes(4, "big") + header + body
    return len(inside).to_bytes(4, "big") + inside


def feed_bytewise(buffer: FrameBuffer, data: bytes) -> None:
    for place in range(len(data)):
        buffer.feed(data[place : place + 1])


def test_frames_of_one_read() -> None:
    buffer = FrameBuffer()
    frames = buffer.feed(framed(b"{}", b"one") + framed(b"") + framed(b"{}", b"three")[:7])
    assert frames == [b"\0\0\0\x02{}one", b"\0\0\0\0"]
    assert buffer.pending_bytes == 7
    assert buffer.feed(framed(b"{}", b"three")[7:]) == [b"\0\0\0\x02{}three"]
    assert buffer.pending_bytes == 0
    assert buffer.feed(b"") == []


def test_a_large_frame_in_many_pieces() -> None:
    data = framed(b"{}", bytes(3_000_000))
    buffer = FrameBuffer()
    frames = [
        frame
        for start in range(0, len(data), 65536)
        for frame in buffer.feed(data[start : start + 65536])
    ]
    assert [len(frame) for frame in frames] == [len(data) - 4]


def receive(buffer: FrameBuffer, data: bytes, sizes: list[int]) -> list[bytes]:
    """Give *data* in pieces of these sizes and then of 64 KiB, into ``room`` where there is one."""
    frames: list[bytes] = []
    while data:
        room = buffer.room()
        size = min(sizes.pop(0) if sizes else 65536, len(data) if room is None else len(room))
        piece, data = data[:size], data[size:]
        if room is None:
            frames += buffer.feed(piece)
        else:
            room[: len(piece)] = piece
            frames += map(bytes, buffer.fill(len(piece)))
    return frames


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.sampled_from([0, 9, 100_000, 130_000, 400_000]), min_size=1, max_size=5),
    st.lists(st.integers(1, 300_000), max_size=12),
)
def test_large_frames_are_received_in_place(bodies: list[int], sizes: list[int]) -> None:
    frames = [framed(b"{}", bytes([number + 1]) * size) for number, size in enumerate(bodies)]
    buffer = FrameBuffer()
    assert receive(buffer, b"".join(frames), sizes) == [frame[4:] for frame in frames]
    assert buffer.pending_bytes == 0


def test_a_frame_that_began_in_room_may_end_without() -> None:
    data = framed(b"{}", b"x" * 300_000)
    buffer = FrameBuffer()
    assert buffer.room() is None
    assert buffer.feed(data[:1000]) == []
    room = buffer.room()
    assert room is not None
    assert len(room) == len(data) - 1000
    room[:5000] = data[1000:6000]
    assert buffer.fill(5000) == []
    assert buffer.pending_bytes == 6000
    assert buffer.feed(data[6000:] + framed(b"{}")) == [data[4:], framed(b"{}")[4:]]


def test_the_limit_counts_the_first_four_bytes() -> None:
    data = framed(b"{}", bytes(10))
    assert FrameBuffer(len(data)).feed(data) == [data[4:]]
    with pytest.raises(FrameError, match="longer than the limit"):
        FrameBuffer(len(data) - 1).feed(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ((FRAME_BYTES_MAX - 3).to_bytes(4, "big"), "longer than the limit"),
        (b"\x7f\xff\xff\xff", "longer than the limit"),
        (b"GET / HTTP/1.1\r\n\r\n", "speaks HTTP"),
        (b"\x16\x03\x01\x02", "speaks TLS"),  # a TLS handshake
        (b"\xff\xff\xff\xff", "less than its own header"),
        (b"\0\0\0\x03", "less than its own header"),
        (b"\0\0\0\0", "less than its own header"),
        (b"\0\0\0\x08\0\0\0\x05", "header of 5 bytes in a frame of 8"),
        (b"\0\0\0\x08\x01\xff\xff\xff", "header of 16777215 bytes"),
    ],
)
def test_what_cannot_be_a_frame_is_refused_before_it_is_collected(data: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason) as caught:
        FrameBuffer().feed(data)
    assert caught.value.fix
    assert isinstance(caught.value, RemoteProtocolError)
    with pytest.raises(FrameError, match=reason):
        feed_bytewise(FrameBuffer(), data)


def test_good_frames_before_the_damage_are_handed_over_with_the_error() -> None:
    buffer = FrameBuffer()
    with pytest.raises(FrameError) as caught:
        buffer.feed(framed(b"{}", b"good") + b"\0\0\0\0")
    assert caught.value.frames == [b"\0\0\0\x02{}good"]
    with pytest.raises(FrameError) as again:
        buffer.feed(framed(b"{}"))
    assert again.value.frames == []


def test_split_frame() -> None:
    assert split_frame(b"\x01\0\0\x02{}body") == (1, b"{}", b"body")
    assert split_frame(memoryview(b"\0\0\0\0")) == (0, b"", b"")
    for bad in (b"", b"\0\0\0", b"\0\0\0\x01"):
        with pytest.raises(RemoteProtocolError):
            split_frame(bad)
