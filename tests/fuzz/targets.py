"""The targets of fuzzing: each reads any bytes, or refuses them with the error of its reader.

Another exception, two readers that disagree, and a value that changes when it is written and read
again are findings. The first byte or two of some inputs choose the class or the size of pieces, so
that one target serves many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from body_classes import JSON_BODIES
from grpc_target import grpc
from header_catalogue import HEADERS

from triomq.broker.replication.errors import ReplicationError
from triomq.broker.replication.master_link import LinkRules, LogBounds, MasterLink
from triomq.broker.replication.slave_link import SlaveLink
from triomq.client.core.trace_records import decode_trace, encode_trace
from triomq.namesrv.controller.raft_wire import decode_message as decode_raft
from triomq.namesrv.controller.raft_wire import encode_message as encode_raft
from triomq.remoting.access.control import AccessControl
from triomq.remoting.access.plain_acl import PlainAcl
from triomq.remoting.access.users import AccessUser, UserTable
from triomq.remoting.core.errors import (
    FrameError,
    LocalProtocolError,
    Rejected,
    RemoteProtocolError,
)
from triomq.remoting.core.properties_file import (
    PropertiesError,
    decode_text,
    format_properties,
    parse_properties,
)
from triomq.remoting.monitor.http import BadRequest, HttpRequest, read_request
from triomq.remoting.protocol import header_json, header_rocketmq
from triomq.remoting.protocol.batch import batch_properties, decode_batch, encode_batch
from triomq.remoting.protocol.bodies.pop import BatchAckBody
from triomq.remoting.protocol.bodies.registration import decode_registration
from triomq.remoting.protocol.bodies.schema import decode_array
from triomq.remoting.protocol.bodies.timer import TimerCheckPoint
from triomq.remoting.protocol.command import Command, decode_frame
from triomq.remoting.protocol.compression import plain_body
from triomq.remoting.protocol.fastjson import dumps, loads
from triomq.remoting.protocol.fields import codec_of
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.protocol.header_json_fast import frame_reader
from triomq.remoting.protocol.message_properties import decode_properties, encode_properties
from triomq.remoting.protocol.peer import ClientPeer
from triomq.remoting.protocol.proxy_header import NoProxyHeader, read_proxy_header
from triomq.remoting.protocol.record_reader import decode_records, read_record
from triomq.remoting.protocol.request_decoder import RequestDecoder
from triomq.remoting.protocol.signing import ACCESS_KEY, Credentials, is_signed_by, signed
from triomq.remoting.protocol.socks import SocksDialogue

FRAME_BYTES_MAX = 1 << 16
INFLATED_BYTES_MAX = 1 << 16
CREDENTIALS = Credentials(access_key="any-key", secret_key="12345678")

REQUESTS = [
    (code, pair.request, pair.short)
    for code, pair in sorted(HEADERS.items())
    if pair.request is not None
]
DECODER = RequestDecoder({code: (pair.request, pair.short) for code, pair in HEADERS.items()})


def stream(data: bytes) -> None:
    """Frames in pieces of one size and in one piece; both frame decoders; a client's peer."""
    if not data:
        return
    step, data = data[0] + 1, data[1:]
    frames, problem = frames_of([data])
    assert (frames, str(problem)) == as_text(
        frames_of(data[at : at + step] for at in range(0, len(data), step))
    )
    for frame in frames:
        try:
            both_decoders(frame)
        except RemoteProtocolError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    ClientPeer[None](frame_max_bytes=FRAME_BYTES_MAX).receive(data)


def frames_of(pieces: Iterable[bytes]) -> tuple[list[bytes], RemoteProtocolError | None]:
    buffer = FrameBuffer(FRAME_BYTES_MAX)
    frames: list[bytes] = []
    for piece in pieces:
        try:
            frames += buffer.feed(piece)
        except FrameError as error:
            return frames + error.frames, error
    return frames, None


def as_text(outcome: tuple[list[bytes], RemoteProtocolError | None]) -> tuple[list[bytes], str]:
    return outcome[0], str(outcome[1])


def both_decoders(frame: bytes) -> None:
    command: Command | None = None
    refused: RemoteProtocolError | None = None
    try:
        command = decode_frame(frame)
        cls = (
            HEADERS[command.code].request
            if command.code in HEADERS and not command.is_response
            else None
        )
        header = command.header(cls) if cls is not None else None
    except RemoteProtocolError as error:
        refused = error
    try:
        decoded = DECODER.decode(frame)
    except RemoteProtocolError:
        assert refused is not None, "only the typed decoder refuses"
        raise refused from None
    if refused is not None:
        assert too_deep(refused), f"only the general decoder refuses: {refused}"
        raise refused
    assert command is not None
    assert decoded[:6] == (
        command.code,
        command.opaque,
        command.flag,
        command.version,
        command.language,
        command.remark,
    )
    assert decoded[6] == header or decoded[6] != decoded[6]


def too_deep(refused: RemoteProtocolError) -> bool:
    """For text that is not UTF-8, the slow decoder reads every member, up to a depth; the typed
    decoder skips unknown members.
    """
    return "nested deeper than" in str(refused)


def json_header(data: bytes) -> None:
    """Read, write, read again."""
    code, opaque, flag, version, language, remark, ext = header_json.decode_header(data)
    again = header_json.decode_header(
        header_json.encode_header((code, opaque, flag, version, language, remark, ext))
    )
    assert again[:4] + again[5:] == (code, opaque, flag, version, remark, ext)
    if 0 <= language <= 13:
        assert again[4] == language


def binary_header(data: bytes) -> None:
    """Read, write, read again."""
    decoded = header_rocketmq.decode_header(data)
    again = header_rocketmq.decode_header(header_rocketmq.encode_header(decoded))
    assert again == decoded


def headers(data: bytes) -> None:
    """A JSON header of the class that the first byte chooses.

    Both decoders agree, and the header is the same after writing.
    """
    if not data:
        return
    code, cls, short = REQUESTS[data[0] % len(REQUESTS)]
    assert cls is not None
    codec = codec_of(cls)
    refused: RemoteProtocolError | None = None
    header: Any = None
    try:
        fields = header_json.decode_header(data[1:])
        header = codec.from_ext(fields[6], short=short)
    except RemoteProtocolError as error:
        refused = error
    try:
        typed = typed_reader(code)(data[1:])
    except (ValueError, RecursionError):
        typed = None  # unusual: left to the general decoder
    if refused is not None:
        assert typed is None or too_deep(refused), f"only the general decoder refuses: {refused}"
        raise refused
    if typed is not None:
        assert typed.extFields == header
    assert codec.from_ext(codec.to_ext(header, short=short), short=short) == header


@cache
def typed_reader(code: int) -> Callable[[bytes], Any]:
    _, cls, short = next(row for row in REQUESTS if row[0] == code)
    assert cls is not None
    return frame_reader(cls, short)


def bodies(data: bytes) -> None:
    """A body of the class that the first byte chooses: the same after writing."""
    if not data:
        return
    cls = JSON_BODIES[data[0] % len(JSON_BODIES)]
    value = cls.decode(data[1:])
    assert cls.decode(value.encode()) == value
    assert cls.decode(value.encode(bare_keys=True)) == value


def arrays(data: bytes) -> None:
    """A JSON array of the body class that the first byte chooses."""
    if data:
        decode_array(JSON_BODIES[data[0] % len(JSON_BODIES)], data[1:])


def json(data: bytes) -> None:
    """fastjson's text; values that standard JSON has are the same after writing."""
    value = loads(data)
    try:
        text = dumps(value)
    except LocalProtocolError:
        return  # a number beyond 64 bits, which no body class accepts
    assert same(loads(text), value)


def same(one: Any, other: Any) -> bool:
    """Return equality, where an infinite number, which JSON does not have, equals None."""
    if isinstance(other, dict):
        return (
            isinstance(one, dict)
            and one.keys() == other.keys()
            and all(same(one[key], other[key]) for key in other)
        )
    if isinstance(other, list):
        return isinstance(one, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(other, float) and not math.isfinite(other):
        return one is None
    return bool(one == other)


def registration(data: bytes) -> None:
    """The body of a broker whose release the first byte chooses, plain and deflated."""
    if data:
        decode_registration(data[1:], (30, 401, 479)[data[0] % 3])


def records(data: bytes) -> None:
    """Messages as they lie in the log: the strict reader returns one, or a reason."""
    first = read_record(data, 0, len(data))
    assert isinstance(first, str) or first.size <= len(data)
    messages = decode_records(data, check_crc=True)
    for message in messages:
        assert message.properties is not None
        assert message.offset_message_id
        assert message.message_id
        assert message.born_host[1] == message.born_host[1]
        assert message.keys is not None
    if messages:
        assert not isinstance(first, str)


def batch(data: bytes) -> None:
    """The body of a batch send: the same after writing."""
    elements = decode_batch(data)
    assert encode_batch(elements) == normal_batch(data)
    assert batch_properties(data) == [properties for _, _, properties in elements]


def normal_batch(data: bytes) -> bytes:
    """Return the same bytes with magic and CRC 0, as they are written."""
    changed = bytearray(data)
    position = 0
    while position < len(changed):
        changed[position + 4 : position + 12] = bytes(8)
        position += int.from_bytes(changed[position : position + 4])
    return bytes(changed)


def properties(data: bytes) -> None:
    """The text of a message's properties."""
    read = decode_properties(data)
    try:
        written = encode_properties(read)
    except LocalProtocolError:
        return  # damaged text gets longer when it is written: more than the limit
    assert decode_properties(written) == read


def settings(data: bytes) -> None:
    """Java's properties text, as in requests that change settings.

    The reader's own error counts as the refusal.
    """
    try:
        read = parse_properties(decode_text(data))
    except PropertiesError as error:
        raise RemoteProtocolError(str(error)) from None
    assert parse_properties(format_properties(read)) == read


def small(data: bytes) -> None:
    """A small reader that the first byte chooses: PROXY header, timer check point, batch
    acknowledgement, compressed body.
    """
    if not data:
        return
    choice, data = data[0] % 4, data[1:]
    if choice == 0:
        proxy_header(data)
    elif choice == 1:
        point = TimerCheckPoint.decode(data)
        assert point.encode() == data
    elif choice == 2:
        for ack in BatchAckBody.decode(data).acks:
            assert sorted(set(ack.offsets())) == ack.offsets()
    elif data:
        assert (
            len(plain_body(data[1:], data[0] << 8 | 1, bytes_max=INFLATED_BYTES_MAX))
            <= INFLATED_BYTES_MAX
        )


def proxy_header(data: bytes) -> None:
    """A PROXY header in any pieces: None until it is whole, then the same whatever follows."""
    settled: str | None = None
    for size in range(len(data) + 1):
        outcome = proxy_outcome(data[:size])
        assert settled in (None, outcome), (settled, outcome)
        settled = outcome
    if settled == "malformed":
        read_proxy_header(data)


def proxy_outcome(data: bytes) -> str | None:
    """Return what is known after these bytes; None if they are not enough."""
    try:
        header = read_proxy_header(data)
    except NoProxyHeader:
        return "no header"
    except RemoteProtocolError:
        return "malformed"
    assert header is None or 0 < header.size <= len(data)
    return None if header is None else str(header)


def signature(data: bytes) -> None:
    """The signature that a client makes and a server checks, for any header.

    JSON for an even first byte, binary for an odd one.
    """
    if not data:
        return
    decode = header_rocketmq.decode_header if data[0] & 1 else header_json.decode_header
    _, _, _, version, _, _, ext = decode(data[1:])
    assert is_signed_by(ext or {}, data, "secret", version=version) in (True, False)
    made = signed(ext, data, CREDENTIALS, binary=bool(data[0] & 1))
    assert is_signed_by(made, data, CREDENTIALS.secret_key)
    assert not is_signed_by(made, data + b"x", CREDENTIALS.secret_key)


def signed_frames(data: bytes) -> None:
    """A frame at the door of a server, by both versions of access control.

    As it comes it is refused, since it cannot know the secret. Signed by a user it is that user's;
    with any change after that it is refused again.
    """
    command = decode_frame(data)
    code, body, ext = int(command.code), bytes(command.body), command.ext or {}
    for control in (AccessControl(USERS, "C"), AccessControl(ACCOUNTS, "C")):
        assert not _lets_in(control, code, ext, body, command.version)
        made = signed(ext, body, CREDENTIALS)
        user = control.identify(code, made, body)
        assert user is not None
        assert user.name == CREDENTIALS.access_key
        assert not _lets_in(control, code, made, body + b"x")
        for name in (*list(made)[:8], ACCESS_KEY):
            assert not _lets_in(control, code, {**made, name: made[name] + "x"}, body)
        assert not _lets_in(control, code, {**made, "\uffff": "x"}, body)


def _lets_in(
    control: AccessControl,
    code: int,
    ext: Mapping[str, str],
    body: bytes,
    version: int | None = None,
) -> bool:
    try:
        return control.identify(code, ext, body, version) is not None
    except Rejected:
        return False


ACCOUNTS = PlainAcl.read(
    [{"accounts": [{"accessKey": CREDENTIALS.access_key, "secretKey": CREDENTIALS.secret_key}]}]
).table()
USERS = UserTable(
    {CREDENTIALS.access_key: AccessUser(CREDENTIALS.access_key, CREDENTIALS.secret_key)}
)


def arrow(data: bytes) -> None:
    """Pull answers to Arrow, all columns. The source's own error counts as the refusal."""
    decoder, block, refusal = arrow_decoder()
    try:
        decoder.decode([block(data)])
    except refusal as error:
        raise RemoteProtocolError(str(error)) from None


@cache
def arrow_decoder() -> tuple[Any, Callable[[bytes], Any], type[Exception]]:
    # PySpark takes seconds to import: only for this target.
    from pyspark.sql.types import StructField, StructType

    from triomq.client.spark.columns import COLUMNS, arrow_schema
    from triomq.client.spark.decode import RecordDecoder
    from triomq.client.spark.errors import SourceError
    from triomq.client.spark.offsets import Queue
    from triomq.client.spark.records import Block

    schema = arrow_schema(
        StructType([StructField(column.name, column.types[0]) for column in COLUMNS])
    )
    queue = Queue("orders", "broker-a", 0)
    return RecordDecoder(schema), lambda data: Block(queue, 0, 1 << 62, data), SourceError


def socks(data: bytes) -> None:
    """The answers of a SOCKS proxy."""
    dialogue = SocksDialogue("broker.example", 10911, "me", "secret")
    dialogue.start()
    while data and not dialogue.done:
        size = dialogue.wanted()
        assert size > 0
        dialogue.received(data[:size])
        data = data[size:]


def replication(data: bytes) -> None:
    """Both directions of the HA port, in pieces of one size and in one piece.

    The link's own error counts as the refusal.
    """
    if len(data) < 2:
        return
    step, from_slave, data = data[0] + 1, bool(data[1] & 1), data[2:]
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    (seen, refused), (again, refused_again) = (seen_of(from_slave, cut) for cut in ([data], pieces))
    assert (seen, str(refused)) == (again, str(refused_again))
    if refused is not None:
        raise RemoteProtocolError(str(refused))


def seen_of(from_slave: bool, pieces: Iterable[bytes]) -> tuple[object, ReplicationError | None]:
    """Return what a link knows after some bytes, and why it refuses more."""
    rules = LinkRules(segment_size=4096)
    if from_slave:
        master = MasterLink(rules, "fuzz", 0.0)
        bounds = LogBounds(4096, 10_000)
        refused = refusal_of(lambda piece: master.receive(piece, bounds, 0.0), pieces)
        return (master.next_offset, master.acknowledged, master.hellos, master.name), refused
    slave = SlaveLink(rules, None, -2, 0.0)
    refused = refusal_of(lambda piece: slave.receive(piece, 0.0), pieces)
    return slave.expected if refused is None else None, refused


def refusal_of(
    receive: Callable[[bytes], object], pieces: Iterable[bytes]
) -> ReplicationError | None:
    for piece in pieces:
        try:
            receive(piece)
        except ReplicationError as error:
            return error
    return None


def probe(data: bytes) -> None:
    """A request at the monitor port, in pieces of one size and in one piece.

    The reader's own error counts as the refusal.
    """
    if not data:
        return
    step, data = data[0] + 1, data[1:]
    whole, refused = probe_of([data])
    again, refused_again = probe_of(data[: at + step] for at in range(0, len(data), step))
    assert (whole, str(refused)) == (again, str(refused_again))
    if refused is not None:
        raise RemoteProtocolError(str(refused))


def probe_of(prefixes: Iterable[bytes]) -> tuple[HttpRequest | None, BadRequest | None]:
    """Return the first complete request of growing bytes, or why there is none."""
    for data in prefixes:
        try:
            request = read_request(data)
        except BadRequest as error:
            return None, error
        if request is not None:
            return request, None
    return None, None


def traces(data: bytes) -> None:
    """Records of message traces: what is read is written, and read again, as it was."""
    text = data.decode("utf-8", "replace")
    read = decode_trace(text)
    assert len(read.records) + read.unreadable == len([*filter(None, text.split("\x02"))])
    # Absent values have several forms, of which one is written.
    once = decode_trace("".join(map(encode_trace, read.records)))
    again = decode_trace("".join(map(encode_trace, once.records)))
    assert (once.unreadable, again) == (0, once)
    if read.unreadable:
        raise RemoteProtocolError(f"{read.unreadable} records cannot be read")


def raft(data: bytes) -> None:
    """Messages between controllers."""
    message = decode_raft(data)
    assert decode_raft(encode_raft(message)) == message


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        *(stream, json_header, binary_header, headers, bodies, arrays, json, registration),
        *(records, batch, properties, settings, small, signature, arrow, socks, replication, probe),
        *(traces, grpc, raft, signed_frames),
    )
}
