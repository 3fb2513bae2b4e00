"""Every example of docs/protocol.md agrees with its text; the generated reference is up to date."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from triomq.remoting.protocol.codes import LanguageCode, RequestCode, SerializeType
from triomq.remoting.protocol.command import Command, decode_frame, encode_command, response_to
from triomq.remoting.protocol.fastjson import loads
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.send import SendMessageHeader, SendMessageResponseHeader
from triomq.remoting.protocol.record_reader import decode_records

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "protocol.md").read_text()
BLOCKS = dict(re.findall(r"^```(\w+ [\w-]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def rows(name: str) -> list[tuple[bytes, str]]:
    """Return bytes and comment of each line of a block."""
    lines = [line.partition("|") for line in BLOCKS[f"hex {name}"].splitlines()]
    return [(bytes.fromhex(text), comment.strip()) for text, _, comment in lines]


def data(name: str) -> bytes:
    return b"".join(part for part, _ in rows(name))


def command(name: str) -> Command:
    (frame,) = FrameBuffer().feed(data(name))
    return decode_frame(frame)


def test_the_json_request() -> None:
    asked = command("request-json")
    assert (asked.code, asked.opaque, asked.flag, asked.version) == (
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        7,
        0,
        479,
    )
    assert (asked.language, asked.serialize) == (LanguageCode.PYTHON, SerializeType.JSON)
    assert asked.header(GetRouteHeader) == GetRouteHeader(topic="TopicA")
    assert encode_command(asked) == data("request-json")
    assert len(data("request-json")) == 138


@pytest.mark.parametrize("name", ["request-json", "send"])
def test_comments_of_json_lines_are_their_text(name: str) -> None:
    lines = [
        (part, comment)
        for part, comment in rows(name)
        if comment and (len(part) > 4 or part[:1] == b'"')
    ]
    assert len(lines) > 8
    for part, comment in lines:
        assert part.decode() == comment


def test_the_binary_request() -> None:
    asked = command("oneway-binary")
    assert (asked.code, asked.opaque, asked.is_oneway, asked.serialize) == (
        15,
        8,
        True,
        SerializeType.ROCKETMQ,
    )
    wanted = UpdateConsumerOffsetHeader(
        consumer_group="CG", topic="T", queue_id=3, commit_offset=42
    )
    assert asked.header(UpdateConsumerOffsetHeader) == wanted
    assert encode_command(asked) == data("oneway-binary")
    entries = [comment.split(" = ") for _, comment in rows("oneway-binary") if " = " in comment]
    assert dict(entries) == asked.ext


def test_the_send_and_its_answer() -> None:
    asked = command("send")
    header = asked.header(SendMessageHeader)
    assert (header.producer_group, header.topic, header.queue_id, header.properties) == (
        "PG",
        "TopicA",
        3,
        "TAGS\x01T1\x02",
    )
    assert (asked.body, asked.opaque) == (b"hi", 9)
    assert encode_command(asked) == data("send")
    text = BLOCKS["json answer-to-send"].strip().encode()
    answer = decode_frame(len(text).to_bytes(4) + text)
    placed = answer.header(SendMessageResponseHeader)
    assert (placed.message_id, placed.queue_id, placed.queue_offset) == (
        "C0A8000100002A9F00000000000004D2",
        3,
        5,
    )
    assert encode_command(response_to(asked, 0, placed))[8:] == text


def test_the_message() -> None:
    (message,) = decode_records(data("message"), check_crc=True)
    assert (message.size, message.queue_id, message.queue_offset, message.log_offset) == (
        107,
        3,
        5,
        1234,
    )
    assert (message.topic, message.body, message.properties) == ("TopicA", b"hi", {"TAGS": "T1"})
    assert (message.born_host, message.store_host) == (
        ("192.168.0.9", 50000),
        ("192.168.0.1", 10911),
    )
    assert message.offset_message_id == "C0A8000100002A9F00000000000004D2"


def test_javas_habits_are_read() -> None:
    read = [loads(line) for line in BLOCKS["json habits"].splitlines()]
    assert [next(iter(value)) for value in read] == [
        "brokerAddrs",
        "offsetTable",
        "dataVersion",
        "counter",
    ]
    assert read[2]["mappingDataVersion"] == {"counter": 1}


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    for name, number in re.findall(r"`([A-Z_]+)` (\d+)", PAGE):
        assert LanguageCode[name] == int(number)
    steps = PAGE[PAGE.index("## 4.") : PAGE.index("### Sending")]
    codes = {
        int(code)
        for code in re.findall(
            r"(?<=\| )\d+|(?<=, )\d+(?= \(many)|(?<=then )\d+|(?<=request )\d+", steps
        )
    }
    assert codes == {105, 34, 310, 320, 38, 40, 14, 15, 11, 36, 35}
    assert codes <= set(RequestCode)


def test_the_python_example_runs() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert isinstance(names["command"], Command)


def test_a_wrong_byte_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLOCKS, "hex message", BLOCKS["hex message"].replace("68 69", "68 6a"))
    with pytest.raises(Exception, match="does not match its CRC"):
        test_the_message()


@pytest.mark.parametrize("name", ["remoting", "requests"])
def test_the_reference_is_up_to_date(name: str) -> None:
    pages = dict(runpy.run_path(str(DOCS / "generate_reference.py"))[f"{name}_pages"]())
    paths = [DOCS / "reference" / f"{name}.md", *(DOCS / "reference" / name).iterdir()]
    assert {str(path.relative_to(DOCS)): path.read_text() for path in paths} == pages, "make docs"


def test_the_reference_names_every_request_and_body() -> None:
    titles = {
        title
        for path in (DOCS / "reference" / "requests").iterdir()
        for title in re.findall(r"^##+ (.+)$", path.read_text(), re.MULTILINE)
    }
    assert {
        "310 SEND_MESSAGE_V2",
        "200050 POP_MESSAGE",
        "HeartbeatData",
        "SubscriptionData",
    } <= titles
    index = (DOCS / "reference" / "requests.md").read_text()
    listed = set(re.findall(r"^\| (\d+) \| \[(\w+)\]\(requests/", index, re.MULTILINE))
    assert {f"{code} {name}" for code, name in listed} == {
        title for title in titles if title[0].isdigit()
    }
