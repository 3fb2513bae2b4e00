"""Numbers, header classes and bodies against the tables of Java's own classes: complete, with the
same names and types.
"""

from __future__ import annotations

import pytest
from body_catalogue import BODIES, ArrayOf, BodyKind
from golden_data import Exchange, exchanges
from header_catalogue import COMMON_EXT_FIELDS, HEADERS
from java_bodies import JAVA_BODIES, NO_JAVA_BODY
from java_headers import FOLDER, NO_JAVA_CLASS, Pair, java_headers, pairs
from unsupported_codes import CONTAINER, LITE_TOPICS, ROCKSDB, UNSUPPORTED

from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.codes import LanguageCode, RequestCode, ResponseCode, version_name
from triomq.remoting.protocol.command import decode_frame
from triomq.remoting.protocol.fields import codec_of

UNUSED = {
    **dict.fromkeys(
        (13, 22, 23, 27, 47, *range(209, 215)),
        "a number that no release from 4.9 on sends or handles",
    ),
    **dict.fromkeys((301, 302), "filter servers were removed before 4.9; no client asks for them"),
    19001: "between our controllers: no number of Java's",
    200072: (
        "a number that 5.5 neither sends nor handles: lite messages are acknowledged with 200051"
    ),
}
"""Request codes without an entry in the catalogue, and why."""

NOT_OFFERED = {
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
    *(code for code, reason in UNSUPPORTED.items() if reason in (CONTAINER, LITE_TOPICS, ROCKSDB)),
}
"""Request codes that neither our servers take nor our clients send with a header or body."""

OLD_NAMES = {  # 4.x used these numbers for its accounts; 5.x gave them other meanings
    "UPDATE_AND_CREATE_ACL_CONFIG_FAILED": 209,
    "DELETE_ACL_CONFIG_FAILED": 210,
    "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED": 211,
}

SET_BY_HAND = {  # entries of a header without a field in Java's class
    (10, "response"): {"MSG_REGION", "TRACE_ON"},
    (310, "response"): {"MSG_REGION", "TRACE_ON"},
    (320, "response"): {"MSG_REGION", "TRACE_ON"},
    (324, "response"): {"MSG_REGION", "TRACE_ON"},
    (325, "response"): {"MSG_REGION", "TRACE_ON"},
    (12, "request"): {"_UNIQUE_KEY_QUERY"},
    (36, "request"): {"failure"},  # ours: Java ignores it
    (1005, "response"): {"followers"},  # likewise
    (207, "request"): {"removeOffset"},  # 4.x's name of cleanOffset
    (215, "request"): {"clusterName"},  # the class also serves 216
}

STRICTER = {  # we ask for what Java's class leaves open
    **{
        (code, "request", name): "Java's controller fails without it, or stores null"
        for code, names in {
            1001: "brokerName masterBrokerId masterEpoch",
            1003: "clusterName brokerName brokerId brokerAddress",
            1004: "brokerName",
            1012: "clusterName brokerName",
            1013: "clusterName brokerName appliedBrokerId registerCheckCode",
        }.items()
        for name in names.split()
    },
    (321, "request", "topic"): "Java's broker fails without it",
}

KINDS: dict[str, tuple[type, int]] = {
    "String": (str, 0),
    "BoundaryType": (str, 0),
    "Boolean": (bool, 0),
    "boolean": (bool, 0),
    "Integer": (int, 32),
    "int": (int, 32),
    "Long": (int, 64),
    "long": (int, 64),
}


def named_numbers(release: str) -> list[tuple[str, str, int]]:
    rows = [line.split("\t") for line in (FOLDER / f"codes-{release}.tsv").read_text().splitlines()]
    return [(kind, name, int(number)) for kind, name, number in rows]


@pytest.mark.parametrize("release", ["5.5.0", "4.9.4"])
def test_every_number_has_the_name_it_has_in_java(release: str) -> None:
    names = {"RequestCode": RequestCode, "ResponseCode": ResponseCode, "LanguageCode": LanguageCode}
    for kind, name, number in named_numbers(release):
        if kind == "Version":
            assert version_name(number) == name
        elif name not in OLD_NAMES:
            assert names[kind][name] == number
        else:
            assert OLD_NAMES[name] == number
    languages = {number for kind, _, number in named_numbers(release) if kind == "LanguageCode"}
    assert languages == set(LanguageCode) if release == "5.5.0" else languages < set(LanguageCode)


def test_every_request_code_is_in_the_catalogue_or_has_a_reason() -> None:
    assert set(RequestCode) - HEADERS.keys() == UNUSED.keys() | NOT_OFFERED
    assert BODIES.keys() <= HEADERS.keys()


@pytest.mark.parametrize("release", ["5.5.0", "4.9.4"])
@pytest.mark.parametrize("pair", pairs(), ids=str)
def test_a_header_class_declares_what_java_declares(pair: Pair, release: str) -> None:
    theirs = java_headers(release).get(pair.java)
    if theirs is None:  # new in 5.x, or gone since 4.x
        assert pair.java in java_headers("4.9.4" if release == "5.5.0" else "5.5.0")
        return
    ours = {field.wire_name(pair.short): field for field in codec_of(pair.ours).fields}
    for field in theirs.fields:
        if field.name not in ours:
            assert field.name in COMMON_EXT_FIELDS
            continue
        kind, bits = KINDS[field.kind]
        mine = ours[field.name]
        assert mine.kind is kind
        assert kind is not int or mine.bits == bits
        primitive = field.kind[0].islower()  # always written
        if mine.required and not field.required and not primitive:
            assert (pair.code, pair.direction, field.name) in STRICTER
    extra = ours.keys() - {field.name for field in theirs.fields} - COMMON_EXT_FIELDS
    if release == "5.5.0":
        assert extra == SET_BY_HAND.get((pair.code, pair.direction), set())


def test_every_java_request_header_belongs_to_one_of_our_codes() -> None:
    for header in java_headers("5.5.0").values():
        if header.code not in {None, *NOT_OFFERED} and "Response" not in header.name:
            own = {field.name for field in header.fields} - COMMON_EXT_FIELDS
            assert header.code in HEADERS
            assert (HEADERS[header.code].request is not None) == bool(own), header.name


def test_each_header_class_has_a_proof() -> None:
    """Golden frames, or an exchange with Java (``tests/compat/test_headers_with_java.py`` runs over
    the same pairs), or a reason.
    """
    exchanged = {(pair.code, pair.direction) for pair in pairs()}
    golden = {
        (exchange.code, direction)
        for exchange in exchanges()
        for direction in ("request", "response")
    }
    for code, pair in HEADERS.items():
        for direction, cls in (("request", pair.request), ("response", pair.response)):
            if cls is not None:
                assert (code, direction) in exchanged | golden | NO_JAVA_CLASS.keys(), (
                    code,
                    direction,
                )


def test_each_body_class_has_a_proof() -> None:
    for pair in BODIES.values():
        for body in pair:
            cls = body.member if isinstance(body, ArrayOf) else body
            if isinstance(cls, type) and issubclass(cls, JsonBody):
                assert cls in JAVA_BODIES or cls in NO_JAVA_BODY, cls


@pytest.mark.parametrize("exchange", exchanges(), ids=str)
def test_golden_bodies_are_where_the_catalogue_says(exchange: Exchange) -> None:
    asked, answered = BODIES.get(exchange.code, (None, None))
    for frame, expected in ((exchange.request, asked), (exchange.response, answered)):
        if frame is None:
            continue
        body = decode_frame(frame[4:]).body
        if isinstance(expected, BodyKind):
            assert body[:1] != b"{"
        elif expected is not None and exchange.response_code in (None, 0) and body:
            assert body[:1] == b"{" or not issubclass(expected, JsonBody)  # type: ignore[arg-type]
        elif expected is None:
            assert not body
