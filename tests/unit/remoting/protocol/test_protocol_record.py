"""Records byte for byte: worked examples, all records of two Java stores, damage in every place."""

import ipaddress

import msgspec
import pytest
from stored_records import decode_record, encoded_record

from tests.support.golden_data import RELEASES, commit_log, logged_messages
from triomq.remoting.core.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.batch import (
    ELEMENTS_MAX,
    batch_properties,
    decode_batch,
    encode_batch,
)
from triomq.remoting.protocol.compression import compress_body, plain_body
from triomq.remoting.protocol.message_properties import encode_properties
from triomq.remoting.protocol.record import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V2,
    StoredMessage,
    encode_blank,
    encode_host,
    encode_record,
    host_text,
)
from triomq.remoting.protocol.record_reader import decode_records, read_record

UNUSED = "the rest of the segment is unused"  # BLANK
V1 = bytes.fromhex(
    "000000a8daa320a777d18982000000030000000000000000000000070000000000100000000000000000018bcfe5"
    "687b7f0000010000d431"
    "0000018bcfe569c87f00000100002a9f0000000000000000000000000000000548656c6c6f09546f706963546573"
    "74003f54414753015461"
    "6741024b455953016b31206b3202554e49515f4b4559013746303030303031304435413342364130303030303030"
    "303030303030303031"
    "02"
)
PROPERTIES = encode_properties(
    {"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": "7F0000010D5A3B6A0000000000000001"}
)
LOCALHOST = b"\x7f\0\0\1"
SIX_1 = ipaddress.ip_address("2001:db8::1").packed
SIX_2 = ipaddress.ip_address("2001:db8::2").packed


def sample(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "topic": "TopicTest",
        "queue_id": 3,
        "queue_offset": 7,
        "log_offset": 1048576,
        "body": b"Hello",
        "properties": PROPERTIES,
        "born_timestamp": 1700000000123,
        "born_host": encode_host(LOCALHOST, 54321),
        "store_timestamp": 1700000000456,
        "store_host": encode_host(LOCALHOST, 10911),
    }
    return encoded_record(**{**fields, **changes})  # type: ignore[arg-type]


def encode_again(message: StoredMessage) -> bytes:
    return encode_record(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        log_offset=message.log_offset,
        body=message.body,
        properties=message.properties_bytes,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host_bytes,
        store_timestamp=message.store_timestamp,
        store_host=message.store_host_bytes,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )


def test_the_worked_example() -> None:
    assert sample() == V1
    message = decode_record(V1, check_crc=True)
    assert (message.topic, message.queue_id, message.queue_offset, message.log_offset) == (
        "TopicTest",
        3,
        7,
        1 << 20,
    )
    assert (message.born_host, message.store_host) == (("127.0.0.1", 54321), ("127.0.0.1", 10911))
    assert (message.body, message.body_crc, message.tag, message.keys) == (
        b"Hello",
        2010220930,
        "TagA",
        ("k1", "k2"),
    )
    assert message.message_id == "7F0000010D5A3B6A0000000000000001"
    assert message.offset_message_id == "7F00000100002A9F0000000000100000"
    assert message.properties is message.properties


def test_the_example_of_a_pull_answer() -> None:
    data = bytes.fromhex("""
        0000006b daa320a7 58932aac 00000003 00000000 0000000000000005 00000000000004d2 00000000
        0000018bcfe56800 c0a80009 0000c350 0000018bcfe56801 c0a80001 00002a9f 00000000
        0000000000000000 00000002 6869 06 546f70696341 0008 5441475301543102
        """)
    (message, again) = decode_records(data + data, check_crc=True)
    assert message.offset_message_id == "C0A8000100002A9F00000000000004D2"
    assert message.message_id == message.offset_message_id  # it has no unique one
    assert (message.topic, message.body, message.properties) == ("TopicA", b"hi", {"TAGS": "T1"})
    assert encode_again(again) == data


def test_many_records_are_read_as_each_of_them_is() -> None:
    kinds = [
        sample(topic="T", body=b""),
        sample(topic="T"),
        sample(topic="Übersee"),
        sample(topic="T" * 200),
        sample(born_host=bytes(20)),
        sample(store_host=bytes(20), properties=b""),
        sample(topic="T", sys_flag=1),
    ]
    data = b"".join(kinds * 2)
    wanted, position = [], 0
    while position < len(data):
        wanted.append(decode_record(data, position))
        position += wanted[-1].size
    for check_crc in (False, True):
        made = decode_records(data, check_crc=check_crc)
        assert [msgspec.structs.astuple(message) for message in made] == [
            msgspec.structs.astuple(message) for message in wanted
        ]
    for cut in range(1, len(kinds[1])):
        with pytest.raises(RemoteProtocolError):
            decode_records(kinds[1] + kinds[1][:cut])


def test_property_crc() -> None:
    record = sample(append_crc=True)
    assert record[:4].hex() == "000000bc"
    assert record[103:105].hex() == "0053"
    assert record[-20:].hex() == "5f5f4352433332230135303132333138313231" + "02"
    without_end = sample(properties=PROPERTIES[:-1], append_crc=True)
    assert without_end == record
    assert decode_record(sample(properties=b"", append_crc=True)).properties.keys() == {"__CRC32#"}


def test_ipv6_hosts() -> None:
    record = sample(born_host=encode_host(SIX_1, 54321), store_host=encode_host(SIX_2, 10911))
    assert record[:4].hex() == "000000c0"
    assert record[36:40].hex() == "00000030"
    message = decode_record(record)
    assert (message.born_host, message.store_host) == (
        ("2001:db8::1", 54321),
        ("2001:db8::2", 10911),
    )
    assert len(message.offset_message_id) == 56
    mixed = sample(store_host=encode_host(SIX_2, 10911), sys_flag=0x11)
    assert decode_record(mixed).sys_flag == 0x21  # the flags follow the hosts
    assert isinstance(read_record(mixed, 0, len(mixed)), StoredMessage)


def test_long_topics_need_version_2() -> None:
    record = sample(topic="T" * 130)
    assert record[4:8].hex() == "daa320ab"
    assert b"\0\x82" + b"T" * 130 in record
    assert decode_record(record).topic == "T" * 130
    assert sample(topic="T" * 127)[4:8].hex() == "daa320a7"
    assert decode_record(sample(topic="中" * 100)).topic == "中" * 100


def test_what_does_not_fit_is_our_error() -> None:
    for changes in (
        {"properties": b"x" * 32768},
        {"properties": b"x" * 32760, "append_crc": True},
        {"queue_id": 1 << 31},
        {"queue_offset": 1 << 63},
        {"born_host": b"short"},
        {"topic": "T" * 40000},
    ):
        with pytest.raises(LocalProtocolError):
            sample(**changes)


@pytest.mark.parametrize("release", RELEASES)
def test_every_record_of_a_java_store(release: str) -> None:
    rows = iter(logged_messages(release))
    blanks = 0
    for start, segment in commit_log(release):
        position = 0
        while isinstance(message := read_record(segment, position, len(segment)), StoredMessage):
            row = next(rows)
            assert row["offset"] == start + position
            assert as_java_prints(message) == row
            assert message.log_offset == start + position
            assert encode_again(message) == segment[position : position + message.size]
            position += message.size
        if message == UNUSED:
            row = next(rows)
            assert row["offset"] == start + position
            assert row["blank"] == len(segment) - position
            blanks += 1
        else:
            assert "magic 0x00000000" in message
    assert next(rows, None) is None
    assert blanks == (3 if release == "5.5.0" else 0)


def as_java_prints(message: StoredMessage) -> dict[str, object]:
    return {
        "offset": message.log_offset,
        "size": message.size,
        "magic": -626843481,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": "/{}:{}".format(*message.born_host),
        "storeTimestamp": message.store_timestamp,
        "storeHost": "/{}:{}".format(*message.store_host),
        "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": message.properties,
        "body": message.body.hex(),
        "offsetMsgId": message.offset_message_id,
    }


def test_a_compressed_body_of_a_java_store_inflates() -> None:
    bodies = [
        plain_body(bytes.fromhex(row["body"]), row["sysFlag"])
        for row in logged_messages("5.5.0")
        if row.get("sysFlag", 0) & 1
    ]
    assert bodies
    assert all(len(body) > 4096 for body in bodies)


@pytest.mark.parametrize("cut", [0, 3, 7, 8, 39, 40, 87, 100, 167])
def test_a_cut_record_is_broken(cut: int) -> None:
    for found in (read_record(V1, 0, cut), read_record(V1[:cut], 0, cut)):
        assert isinstance(found, str)
        assert found != UNUSED
    with pytest.raises(RemoteProtocolError):
        decode_record(V1[:cut])


def test_damage_is_found_where_java_finds_it() -> None:
    wrong_body = V1.replace(b"Hello", b"hello")
    assert read_record(wrong_body, 0, len(V1)) == "the body does not match its CRC"
    assert isinstance(read_record(wrong_body, 0, len(V1), False), StoredMessage)
    with pytest.raises(RemoteProtocolError, match="CRC"):
        decode_record(wrong_body, check_crc=True)
    for changed in (
        V1[:84] + (6).to_bytes(4, "big") + V1[88:],  # body one longer
        V1[:84] + (-1).to_bytes(4, "big", signed=True) + V1[88:],
        V1[:84] + (500).to_bytes(4, "big") + V1[88:],
        V1[:93] + b"\xff" + V1[94:],  # topic longer than a signed byte
        V1[:103] + b"\xff\xff" + V1[105:],  # negative length of the properties
        V1[:103] + b"\x00\x3e" + V1[105:],
        (50).to_bytes(4, "big") + V1[4:],
        (20).to_bytes(4, "big") + V1[4:],
        (4).to_bytes(4, "big") + V1[4:],
        V1[:4] + MAGIC_V2.to_bytes(4, "big") + V1[8:],
        V1[:4] + bytes(4) + V1[8:],
    ):
        found = read_record(changed, 0, len(changed))
        assert isinstance(found, str)
        assert found != UNUSED
        with pytest.raises(RemoteProtocolError):
            decode_records(changed)


def test_an_empty_body_needs_no_crc() -> None:
    record = sample(body=b"")
    changed = record[:8] + b"\x01\x02\x03\x04" + record[12:]
    assert isinstance(read_record(changed, 0, len(changed)), StoredMessage)


def test_blank_records() -> None:
    assert encode_blank(124).hex() == "0000007ccbd43194"
    assert read_record(encode_blank(124) + b"anything" * 15, 0, 124) == UNUSED
    assert BLANK.unpack(encode_blank(8)) == (8, MAGIC_BLANK)


def test_ipv6_text() -> None:
    address = ipaddress.ip_address("1:0:0:2:0:0:0:3").packed
    assert host_text(encode_host(address, 65535)) == ("1:0:0:2::3", 65535)


def test_batches() -> None:
    example = bytes.fromhex(
        """
        00000021 00000000 00000000 00000000 00000001 61     000a 57414954 01 74727565 02
        00000020 00000000 00000000 00000000 00000002 6263   0008 54414753 01 5431 02
        """
    )
    elements = [(0, b"a", b"WAIT\x01true\x02"), (0, b"bc", b"TAGS\x01T1\x02")]
    assert encode_batch(elements) == example
    assert decode_batch(example) == elements
    assert decode_batch(b"") == batch_properties(b"") == []
    assert batch_properties(example) == [properties for _, _, properties in elements]
    assert decode_batch(encode_batch([(-7, b"", b""), (1, b"x", b"")])) == [
        (-7, b"", b""),
        (1, b"x", b""),
    ]
    element = (
        "0000002c00000000000000000000000000000002623100145741495401747275650254414753015461674102"
    )
    assert encode_batch([(0, b"b1", b"WAIT\x01true\x02TAGS\x01TagA\x02")]).hex() == element
    with pytest.raises(LocalProtocolError):
        encode_batch([(0, b"", b"x" * 32768)])
    for bad in (
        example[:-1],
        example + b"\0",
        b"\0\0\0\x22" + example[4:],
        example[:16] + b"\xff\xff\xff\xff" + example[20:],
        example[:16] + b"\0\0\1\0" + example[20:],
        example[:21] + b"\xff\xff" + example[23:],
    ):
        for read in (decode_batch, batch_properties):
            with pytest.raises(RemoteProtocolError):
                read(bad)


def test_compression() -> None:
    assert (
        plain_body(bytes.fromhex("785ecb48cdc9c957c8402701680308b1"), 0x301)
        == b"hello hello hello hello"
    )  # Java's
    body = b"hello" * 1000
    packed, bits = compress_body(body)
    assert (bits, packed[:2].hex()) == (0x301, "785e")
    assert plain_body(packed, bits) == plain_body(packed, 1) == body
    assert compress_body(b"short") == (b"short", 0)
    assert plain_body(b"short", 0x300) == b"short"
    for data, flags in (
        (packed, 0x101),
        (packed, 0x201),
        (packed, 0x401),
        (b"junk", 1),
        (packed[:-5], 1),
    ):
        with pytest.raises(RemoteProtocolError):
            plain_body(data, flags)
    with pytest.raises(RemoteProtocolError, match="more than 100 bytes"):
        plain_body(packed, bits, bytes_max=100)


def test_a_batch_has_15000_messages_at_most() -> None:
    element = encode_batch([(0, b"", b"")])
    assert len(decode_batch(element * ELEMENTS_MAX)) == ELEMENTS_MAX
    for read in (decode_batch, batch_properties):
        with pytest.raises(
            RemoteProtocolError, match="more than 15000 messages; send them in several batches"
        ):
            read(element * (ELEMENTS_MAX + 1))
