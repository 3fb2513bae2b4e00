"""What fastjson writes can be read, and what Java reads can be written."""

import sys

import msgspec
import pytest

from triomq.remoting.core.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.fastjson import bare_key_map, dumps, key_text, loads, object_key_map

QUEUE = {"brokerName": "broker-a", "queueId": 3, "topic": "TopicA"}
QUEUE_TEXT = '{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"brokerAddrs":{0:"192.168.0.1:10911"}}', {"brokerAddrs": {"0": "192.168.0.1:10911"}}),
        ('{"a":{-1:2, 3 : 4}}', {"a": {"-1": 2, "3": 4}}),
        (
            "{'a':'it\\'s','b':[1,2.5,-1e3,true,false,null]}",
            {"a": "it's", "b": [1, 2.5, -1000.0, True, False, None]},
        ),
        (
            (
                '{"offsetTable":{{"topic":"TopicA","queueId":3,'
                '"brokerName":"broker-a"}:{"brokerOffset":10}}}'
            ),
            {"offsetTable": {QUEUE_TEXT: {"brokerOffset": 10}}},
        ),
        ("{}", {}),
        ("{x:[]}", {"x": []}),
        ("[]", []),
        ("[1,]", [1]),
        ("{a:1,}", {"a": 1}),
        ("{a:NaN}", {"a": None}),
        (' { a : "x\\u4e2d\\n\\/\\x" } ', {"a": "x中\n/x"}),
        ('{a:"\\ud83d\\ude00"}', {"a": "😀"}),
        ("{a:'\\x41\\x4'}", {"a": "Ax4"}),
        ('{a:"\\ud83d"}', {"a": "\ufffd"}),
        ("{a:9223372036854775807}", {"a": 2**63 - 1}),
        ("{a:" + "9" * 41 + "}", {"a": 10**41 - 1}),
        ("{a:1e99999,b:-" + "9" * 5000 + "}", {"a": float("inf"), "b": float("-inf")}),
        ("plain", None),
        ('{"x":1} y', None),
        ('{"x" 1}', None),
        ("{x:}", None),
        ("{x:1", None),
        ("[1 2]", None),
        ("{:1}", None),
        ("{[1]:1}", None),
        ('{a:"', None),
        ("", None),
        ("}", None),
        ("{a:01x}", None),
        ("{a:1٠}", None),
    ],
)
def test_reading(text: str, value: object) -> None:
    if value is None:
        with pytest.raises(RemoteProtocolError):
            loads(text)
    else:
        assert loads(text) == value
        assert loads(text.encode()) == value
        assert loads(memoryview(text.encode())) == value


@pytest.mark.parametrize(
    "data", [b"\xff", b"[" * 100_000, b"{a:" * 100_000, b'{"a":' * 5000 + b"1"]
)
def test_hostile_text_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        loads(data)


def test_long_numbers_are_read_where_python_is_told_to_read_short_ones_only() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    try:
        assert loads("{a:" + "9" * 1000 + "}") == {"a": float("inf")}
    finally:
        sys.set_int_max_str_digits(before)


def test_references_are_resolved_where_possible() -> None:
    text = (
        '{"a":{"v":{"x":1}},"b":{"$ref":"$.a.v"},"c":[{"$ref":"$.c[1]"},5],'
        '"d":{"$ref":"$.nowhere"},"e":{"$ref":"@"}}'
    )
    assert loads(text) == {"a": {"v": {"x": 1}}, "b": {"x": 1}, "c": [5, 5], "d": None, "e": None}
    assert loads('{"a":{"$ref":"$"},"b":1}') == {"a": {"a": None, "b": 1}, "b": 1}
    assert loads('{"a":{"$ref":"$.b"},"b":{"$ref":"$.c"},"c":1}') == {"a": None, "b": 1, "c": 1}
    assert loads('{"t":{{"$ref":"$.x"}:1}}') == {"t": {'{"$ref":"$.x"}': 1}}
    assert loads('{"a":{"$ref":5},"b":{"$ref":"$.c","more":1}}') == {
        "a": {"$ref": 5},
        "b": {"$ref": "$.c", "more": 1},
    }


def test_references_cannot_blow_a_text_up() -> None:
    text = '{"a":[' + "0," * 1000 + '0],"b":[' + ",".join(['{"$ref":"$.a"}'] * 200) + "]}"
    with pytest.raises(RemoteProtocolError, match="more than 20000 values"):
        loads(text)


def test_writing_maps_with_object_keys() -> None:
    text = dumps({"offsetTable": object_key_map([(QUEUE, {"brokerOffset": 10})])})
    assert text == b'{"offsetTable":{' + QUEUE_TEXT.encode() + b':{"brokerOffset":10}}}'
    assert loads(text) == {"offsetTable": {QUEUE_TEXT: {"brokerOffset": 10}}}
    assert (
        dumps({"t": object_key_map([(QUEUE, 1)]), "tps": 0.0})
        == b'{"t":{' + QUEUE_TEXT.encode() + b':1},"tps":0.0}'
    )
    assert dumps(object_key_map([])) == b"{}"
    assert key_text({"topic": "TopicA", "queueId": 3, "brokerName": "broker-a"}) == QUEUE_TEXT


def test_writing_bare_keys() -> None:
    assert dumps({"a": bare_key_map([(0, "x"), (1, "y")])}) == b'{"a":{0:"x",1:"y"}}'
    assert loads(dumps(bare_key_map([(7, None)]))) == {"7": None}


def test_what_json_cannot_carry_is_our_error() -> None:
    for value in (object(), "\ud800", {1.5j: 1}):
        with pytest.raises(LocalProtocolError):
            dumps(value)
    assert dumps(msgspec.Raw(b"{0:1}")) == b"{0:1}"
