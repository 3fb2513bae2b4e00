"""Properties, ids and subscriptions, as Java writes and reads them."""

import pytest

from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.protocol.consuming.tag_expressions import subscription
from triomq.remoting.protocol.ids import UniqueIds, decode_offset_message_id
from triomq.remoting.protocol.message_properties import (
    RESERVED_PROPERTIES,
    decode_properties,
    encode_properties,
    parse_properties,
    properties_text,
    property_value,
    user_properties,
)

LOCALHOST = b"\x7f\0\0\1"


def test_properties_text() -> None:
    assert encode_properties({"TAGS": "T1", "中": "文"}) == "TAGS\x01T1\x02中\x01文\x02".encode()
    assert properties_text({}) == ""
    assert decode_properties(b"TAGS\x01T1\x02WAIT\x01true") == {"TAGS": "T1", "WAIT": "true"}
    assert decode_properties(memoryview(b"")) == {}


def test_odd_pieces_are_dropped_as_java_drops_them() -> None:
    assert parse_properties("A\x01\x02B\x011\x02\x01x\x02C\x01xy\x02D\x012") == {
        "B": "1",
        "C": "xy",
        "D": "2",
    }
    assert parse_properties("nothing\x02E\x01a\x01b\x02") == {"E": "a\x01b"}
    assert decode_properties(b"A\x01\xff\x02") == {"A": "\ufffd"}


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "b\x02"}, {"\x02": "x"}])
def test_separators_inside_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(LocalProtocolError, match="0x01 and 0x02"):
        encode_properties(properties)
    with pytest.raises(LocalProtocolError):
        encode_properties({"a": "\ud800"})


def test_one_property_without_the_others() -> None:
    data = b"KEYS\x01k1 k2\x02UNIQ_KEY\x01AB\x02XKEYS\x01no\x02KEYS\x01k3\x02E\x01\x02"
    assert property_value(data, b"KEYS") == b"k3"
    assert property_value(data, b"UNIQ_KEY") == b"AB"
    assert property_value(data, b"YS") is None
    assert property_value(data, b"E") is None
    assert property_value(b"A\x01x", b"A") == b"x"
    assert property_value(b"A\x01x\x02A\x01\x02", b"A") == b"x"
    assert property_value(b"", b"A") is None


def test_message_properties() -> None:
    assert user_properties({"n": "1"}) == {"n": "1"}
    for properties in ({"TAGS": "x"}, {"__CRC32#": "x"}, {" ": "x"}, {"x": ""}):
        with pytest.raises(LocalProtocolError):
            user_properties(properties)
    assert not {"__SHARDINGKEY", "INNER_NUM", "TRANSACTION_CHECK_TIMES"} & RESERVED_PROPERTIES


def test_offset_ids() -> None:
    text = "7F00000100002A9F0000000000100000"
    assert decode_offset_message_id(text) == (LOCALHOST, 10911, 1 << 20)
    six = bytes(range(16))
    assert decode_offset_message_id(f"{six.hex().upper()}{1:08X}{2:016X}") == (six, 1, 2)
    for bad in ("", "7F", "x" * 32, "7F 0000100002A9F0000000000100000", " " * 32):
        with pytest.raises(ValueError, match="not an offset message id"):
            decode_offset_message_id(bad)


def test_unique_ids_are_laid_out_as_java_does() -> None:
    day_two_ms = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
    ids = UniqueIds(LOCALHOST, 0x12345, 0xCAFEBABE)
    first = ids.next(day_two_ms)
    month_start_ms = 1_698_796_800_000
    assert first == f"7F0000012345CAFEBABE{day_two_ms - month_start_ms:08X}0001"
    assert ids.next(day_two_ms)[-4:] == "0002"
    assert ids.series(day_two_ms, 0xFFFD) == (first[:-4], 3)
    assert ids.next(day_two_ms)[-4:] == "0000"
    assert ids.series(day_two_ms + 1, 2) == (f"{first[:20]}{int(first[20:28], 16) + 1:08X}", 1)
    assert ids.next(day_two_ms)[-4:] == "0003"
    december_ms = 1_701_388_800_000
    assert ids.next(december_ms - 1)[20:28] == f"{december_ms - 1 - month_start_ms:08X}"
    assert ids.next(december_ms)[20:28] == "00000000"
    assert (
        ids.next(day_two_ms)[20:28] == first[20:28]
    )  # a clock that steps back finds its month again
    assert (
        UniqueIds(LOCALHOST, 1, 1, utc_offset_seconds=3600).next(december_ms - 3_600_000)[20:28]
        == "00000000"
    )
    assert len(UniqueIds(bytes(16), 1, 1).next(0)) == 56
    with pytest.raises(ValueError, match="4 or 16"):
        UniqueIds(b"abc", 1, 1)


def test_unique_ids_do_not_repeat_within_a_millisecond() -> None:
    ids = UniqueIds(LOCALHOST, 1, 1)
    assert len({ids.next(5) for _ in range(65536)}) == 65536


def test_subscriptions() -> None:
    data = subscription("TopicA", "TagA || TagB", 1_700_000_000_000)
    assert (
        data.encode()
        == b'{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG",'
        b'"subString":"TagA || TagB","subVersion":1700000000000,'
        b'"tagsSet":["TagA","TagB"],"topic":"TopicA"}'
    )
    for everything in (None, "", "*", " * "):
        assert (
            subscription("T", everything, 1).sub_string,
            subscription("T", everything, 1).tags,
        ) == ("*", frozenset())
    assert subscription("T", "A||", 1).tags == {"A"}
    with pytest.raises(LocalProtocolError, match="names no tag"):
        subscription("T", " || ", 1)
