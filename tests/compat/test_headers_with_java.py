"""Every header and body class goes to Java's own class and comes back: nothing lost, nothing added
that we do not know.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest
from header_catalogue import COMMON_EXT_FIELDS
from java_bodies import JAVA_BODIES, filled
from java_headers import FOLDER, Pair, java_headers, pairs
from processes import java_command

from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.codes import LanguageCode, SerializeType
from triomq.remoting.protocol.command import Command, decode_frame, encode_command
from triomq.remoting.protocol.fastjson import loads
from triomq.remoting.protocol.fields import LIMITS, codec_of

pytestmark = [pytest.mark.compat]

DERIVED = {
    "consumeTimeStampStr",
    "maxTimeStampStr",
    "minTimeStampStr",
}  # Java writes some times as text, too, and never reads that
CHECKED = {
    "topicFilterType": "MULTI_TAG",
    "boundaryType": "UPPER",
    "commitOrRollback": 12,
    "maxCount": 7,
    "topK": 7,
}  # Java refuses others


def run(version: str, *arguments: str, given: str = "") -> list[list[str]]:
    done = subprocess.run(
        java_command(version, "Headers", *arguments),
        input=given,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [line.split("\t") for line in done.stdout.splitlines()]


def echoes(version: str, lines: list[tuple[str, str, bytes]]) -> list[list[str]]:
    """What Java makes of each (kind, class, bytes)."""
    given = "".join(f"{kind}\t{name}\t{data.hex()}\n" for kind, name, data in lines)
    answers = [
        words
        for words in run(version, "echo", given=given)
        if words[0] in {"ECHO", "ERROR", "UNKNOWN"}
    ]
    assert len(answers) == len(lines)
    return answers


def sample(pair: Pair, known: set[str], *, complete: bool) -> Any:
    """A header with the largest numbers and some text, and with or without its optional fields;
    only fields that the release knows.
    """
    values: dict[str, Any] = {}
    for field in codec_of(pair.ours).fields:
        if not field.required and (not complete or field.wire_name(pair.short) not in known):
            continue
        value: Any = {
            str: f'{field.attribute} ü"中',
            bool: True,
            int: LIMITS[field.bits][len(field.attribute) % 2],
        }[field.kind]
        values[field.attribute] = CHECKED.get(field.name, value)
    return pair.ours(**values)


@pytest.mark.compatible("header and body classes", peer="java-client-{java_version}")
@pytest.mark.feature("16b", "17a")
def test_headers(java_version: str) -> None:
    classes = java_headers(java_version)
    asked: list[tuple[Pair, Command, Any]] = []
    for pair in pairs():
        if pair.java not in classes:
            continue
        known = {field.name for field in classes[pair.java].fields}
        for form in SerializeType:
            for complete in (False, True):
                header = sample(pair, known, complete=complete)
                ext = codec_of(pair.ours).to_ext(header, short=pair.short)
                command = Command(
                    pair.code,
                    opaque=-5,
                    flag=0,
                    language=LanguageCode.GO,
                    remark="rémark" if complete else None,
                    ext=ext,
                    body=b"body",
                    serialize=form,
                )
                asked.append((pair, command, header))
    answers = echoes(
        java_version,
        [("header", pair.java, encode_command(command)[4:]) for pair, command, _ in asked],
    )
    for (pair, command, header), words in zip(asked, answers, strict=True):
        assert words[0] == "ECHO", (str(pair), words)
        again = decode_frame(bytes.fromhex(words[1])[4:])
        for name in ("code", "opaque", "flag", "language", "version", "remark", "body"):
            assert getattr(again, name) == getattr(command, name), (str(pair), name)
        # A code beyond 16 bits has no binary form: we fall back to JSON.
        assert again.serialize == (
            command.serialize if command.code < 0x8000 else SerializeType.JSON
        )
        codec = codec_of(pair.ours)
        known = {field.name for field in classes[pair.java].fields}
        expected = {name: text for name, text in (command.ext or {}).items() if name in known}
        assert expected.items() <= (again.ext or {}).items(), str(pair)
        assert set(again.ext or {}) <= codec.names(short=pair.short) | COMMON_EXT_FIELDS, str(pair)
        read = codec.from_ext(again.ext, short=pair.short)
        for field in codec.fields:
            if field.wire_name(pair.short) in expected:
                assert getattr(read, field.attribute) == getattr(header, field.attribute), (
                    str(pair),
                    field.name,
                )
    assert len(asked) > {"5.5.0": 450, "4.9.4": 220}[java_version]


PLAIN = '{"code":105,"opaque":7,"extFields":{"topic":"T"}%s}'
READ_ALIKE = [
    PLAIN % "",
    '{"code":"105","opaque":"7","flag":"1","version":"479","extFields":{"topic":"T"}}',
    *(
        f'{{"code":105,"opaque":7,"extFields":{{"topic":{value}}}}}'
        for value in ("5", "true", "1.5", '{"a":1}', "[1,2]", "null", '""')
    ),
    '{"code":105,"opaque":7,"extFields":null}',
    '{"code":105,"opaque":7,"extFields":{}}',
    PLAIN % ',"remark":null',
    PLAIN % ',"remark":5',
    PLAIN % ',"language":9',
    PLAIN % ',"language":"go"',
    PLAIN % ',"zzz":{"a":[1,{"b":2}]}',
    PLAIN % ",",
    PLAIN % ',"serializeTypeCurrentRPC":"ROCKETMQ"',
    ' \n{ "code" : 105 , "opaque" : 7 , "extFields" : { "topic" : "T" } }\n ',
    '{"code":105,"opaque":-2147483648,"extFields":{"topic":"T"}}',
    '{"code":105,"opaque":7.0,"extFields":{"topic":"T"}}',
    '{"code":1e2,"opaque":7,"extFields":{"topic":"T"}}',
    r'{"code":105,"opaque":7,"extFields":{"topic":"\u4e2d\u0001\x41\/"}}',
    '{"code":105,"opaque":7,"extFields":{"topic":"T","topic":"U"}}',
]
REFUSED_ALIKE = [
    '{"code":105,"opaque":2147483648,"extFields":{"topic":"T"}}',
    PLAIN % "" + " x",
    *("[1]", "5", "", "null", '{"code":105,"extFields":"x"}', '{"code":105,"extFields":[]}'),
]


def test_unusual_headers_are_read_as_java_reads_them(java_version: str) -> None:
    frames = [
        len(text.encode()).to_bytes(4) + text.encode() for text in (*READ_ALIKE, *REFUSED_ALIKE)
    ]
    answers = echoes(
        java_version, [("header", "GetRouteInfoRequestHeader", frame) for frame in frames]
    )
    for text, frame, words in zip((*READ_ALIKE, *REFUSED_ALIKE), frames, answers, strict=True):
        if text in REFUSED_ALIKE:
            assert words[0] == "ERROR", text
            with pytest.raises(RemoteProtocolError):
                decode_frame(frame)
            continue
        assert words[0] == "ECHO", (text, words)
        ours, theirs = decode_frame(frame), decode_frame(bytes.fromhex(words[1])[4:])
        for name in ("code", "opaque", "flag", "version", "language", "remark"):
            assert getattr(ours, name) == getattr(theirs, name), (text, name)
        assert (ours.ext or {}).get("topic") == (theirs.ext or {}).get("topic"), text


@pytest.mark.compatible("header and body classes", peer="java-client-{java_version}")
def test_bodies(java_version: str) -> None:
    bodies = [(name, filled(cls)) for cls, name in JAVA_BODIES.items()]
    for bare_keys in (True, False):
        answers = echoes(
            java_version,
            [("body", name, body.encode(bare_keys=bare_keys)) for name, body in bodies],
        )
        unknown = 0
        for (name, body), words in zip(bodies, answers, strict=True):
            if words[0] == "UNKNOWN":
                unknown += 1
                continue
            assert words[0] == "ECHO", (name, words)
            written = bytes.fromhex(words[1])
            equal_where_present(loads(written), loads(body.encode()), name)
            if java_version == "5.5.0":
                assert type(body).decode(written) == body, name
            else:  # it drops what it does not know; the rest is what an instance has by default
                assert isinstance(type(body).decode(written), JsonBody)
        assert unknown == {"5.5.0": 0, "4.9.4": 20}[java_version]


def equal_where_present(theirs: Any, ours: Any, where: str) -> None:
    if isinstance(theirs, dict):
        for name in theirs.keys() - DERIVED:
            assert name in ours, f"{where}: Java writes a member that we do not know: {name}"
            equal_where_present(theirs[name], ours[name], f"{where}.{name}")
    elif isinstance(theirs, list):
        assert len(theirs) == len(ours), where
        for one, other in zip(theirs, ours, strict=True):
            equal_where_present(one, other, where)
    else:
        assert theirs == ours, where


def test_a_body_of_another_shape_is_noticed() -> None:
    body = attrs.evolve(filled(next(iter(JAVA_BODIES))), topic="other")
    with pytest.raises(AssertionError, match="topic"):
        equal_where_present({"topic": "T"}, loads(body.encode()), "body")
    with pytest.raises(AssertionError, match="do not know: new"):
        equal_where_present({"new": 1}, loads(body.encode()), "body")


def test_the_copies_of_java_tables_are_what_java_says(java_version: str) -> None:
    for verb, file in (
        ("describe", f"java-{java_version}.tsv"),
        ("codes", f"codes-{java_version}.tsv"),
    ):
        lines = [line.split("\t") for line in Path(FOLDER, file).read_text().splitlines()]
        said = run(java_version, verb)
        assert [words for words in said if words in lines] == lines
