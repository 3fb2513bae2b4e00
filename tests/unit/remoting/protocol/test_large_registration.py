"""A registration longer than 128 KiB is read topic by topic: the same table as by one call, and
every member has a limit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies import large_registration, registration
from triomq.remoting.protocol.bodies.large_registration import read_large_registration
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody, decode_registration
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable

TOPICS = {
    "Orders": TopicConfig(
        topic_name="Orders",
        read_queue_count=4,
        write_queue_count=2,
        perm=6,
        attributes={"+message.type": "FIFO"},
    ),
    '"quoted" \\ ü': TopicConfig(topic_name='"quoted" \\ ü'),
    "": TopicConfig(topic_name=""),
}
BODIES = {
    "all members": RegisterBrokerBody(
        TopicTable(
            TOPICS,
            DataVersion(1, 2, 3),
            DataVersion(4, 5, 6),
            {"a": {"b": [1]}},
            {"Orders": {"bname": "b"}},
        ),
        ["1.2.3.4:5"],
    ),
    "nothing": RegisterBrokerBody(),
    "no topic": RegisterBrokerBody(TopicTable({}, DataVersion(1, 2, 3))),
}


def without_details(body: RegisterBrokerBody) -> dict[str, Any]:
    """The details of mappings are not for name servers, and nothing reads them."""
    plain = json.loads(body.encode())
    plain["topicConfigSerializeWrapper"].pop("topicQueueMappingDetailMap", None)
    return dict(plain)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("indent", [None, 2])
def test_topic_by_topic_reads_the_same_as_one_call(name: str, indent: int | None) -> None:
    data = json.dumps(json.loads(BODIES[name].encode()), indent=indent).encode()
    read = RegisterBrokerBody(*read_large_registration(data))
    assert without_details(read) == without_details(RegisterBrokerBody.decode(data))


def test_golden_registrations_are_read_alike() -> None:
    golden = Path(__file__).resolve().parents[3] / "golden/wire"
    seen = 0
    for path in sorted(golden.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            frame = json.loads(line)
            raw = bytes.fromhex(frame["request"]) if isinstance(frame.get("request"), str) else b""
            at = raw.find(b'{"filterServerList"')
            if at >= 0:
                seen += 1
                assert without_details(
                    RegisterBrokerBody(*read_large_registration(raw[at:]))
                ) == without_details(RegisterBrokerBody.decode(raw[at:]))
    assert seen


def test_large_bodies_are_read_topic_by_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(
        registration,
        "read_large_registration",
        lambda data: calls.append(len(data)) or (TopicTable(), []),
    )
    body = RegisterBrokerBody(
        TopicTable({f"T{number}": TopicConfig(topic_name=f"T{number}") for number in range(900)})
    ).encode()
    assert len(body) > registration.WHOLE_BYTES_MAX
    decode_registration(body, 479)
    decode_registration(BODIES["all members"].encode(), 479)
    assert calls == [len(body)]


def in_table(members: str) -> bytes:
    return f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{{members}}}}}}}'.encode()


TOPIC = '{"topicName":"T"}'
REFUSED = {
    "a member too long": (
        in_table(f'"T":{{"topicName":"T","x":"{"x" * 65_536}"}}'),
        "one of more than 65,536 characters",
    ),
    "cut off": (in_table(f'"T":{TOPIC}')[:-2], "',' or '}' expected"),
    "text behind it": (in_table(f'"T":{TOPIC}') + b"x", "text after the end"),
    "no comma": (in_table(f'"T":{TOPIC} "U":{TOPIC}'), "',' or '}' expected"),
    "no colon": (in_table(f'"T",{TOPIC}'), "a name and a colon are missing"),
    "a name that is a number": (in_table(f"1:{TOPIC}"), "a name and a colon are missing"),
    "a table that is a list": (
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":[1]}}',
        "an object is missing",
    ),
    "a topic that is a number": (in_table('"T":1'), "TopicConfig should be a JSON object"),
    "nothing": (b"", "no value"),
    "blanks without end": (b"{" + b" " * 70_000 + b"}", "no value"),
    "unknown objects in objects": (
        b'{"x":' * 8 + b'"' + b"x" * 65_536 + b'"' + b"}" * 8,
        "one of more than 65,536 characters",
    ),
    "single quotes": (b"{'x':1}", "no value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_anything_else_is_refused(name: str) -> None:
    data, reason = REFUSED[name]
    with pytest.raises(RemoteProtocolError, match=reason):
        read_large_registration(data)


def test_topics_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_registration, "TOPICS_MAX", 3)
    rows = [f'"T{number}":{TOPIC}' for number in range(4)]
    assert len(read_large_registration(in_table(",".join(rows[:3])))[0].topic_config_table) == 3
    with pytest.raises(
        RemoteProtocolError,
        match="an object of more than 3 members; delete topics that nothing uses",
    ):
        read_large_registration(in_table(",".join(rows)))


def test_a_number_cut_by_the_window_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_registration, "MEMBER_CHARACTERS", (4, 200))
    version = DataVersion(0, 1234567890123, 42)
    assert (
        read_large_registration(RegisterBrokerBody(TopicTable({}, version)).encode())[
            0
        ].data_version
        == version
    )
