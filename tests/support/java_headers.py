"""What Java's header classes declare, read from ``tests/golden/headers``, and which of them belongs
to which of our header classes.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from header_catalogue import HEADERS

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "headers"


class JavaField(NamedTuple):
    name: str
    kind: str  # the simple name of the Java type
    required: bool


class JavaHeader(NamedTuple):
    name: str
    code: int | None  # as Java's annotation says, for most requests of 5.x
    fields: tuple[JavaField, ...]


@lru_cache
def java_headers(release: str) -> dict[str, JavaHeader]:
    """Every header class of a release, by its simple name."""
    found = {}
    for line in (FOLDER / f"java-{release}.tsv").read_text().splitlines():
        name, code, *texts = line.split("\t")
        fields = []
        for text in filter(None, texts):
            field, kind, mark = text.split(":")
            fields.append(JavaField(field, kind, mark == "R"))
        found[name] = JavaHeader(name, None if code == "-" else int(code), tuple(fields))
    return found


# Requests whose Java class does not name this code, or serves several.
_REQUESTS = {
    320: "SendMessageRequestHeaderV2",
    324: "SendMessageRequestHeader",
    325: "SendMessageRequestHeaderV2",
    361: "PullMessageRequestHeader",
    220: "ResetOffsetRequestHeader",
    221: "GetConsumerStatusRequestHeader",
    513: "CreateTopicRequestHeader",
}
_RESPONSES = {
    **dict.fromkeys((10, 310, 320, 324, 325), "SendMessageResponseHeader"),
    370: "RecallMessageResponseHeader",
    **dict.fromkeys((11, 361), "PullMessageResponseHeader"),
    12: "QueryMessageResponseHeader",
    14: "QueryConsumerOffsetResponseHeader",
    21: "GetAllTopicConfigResponseHeader",
    26: "GetBrokerConfigResponseHeader",
    29: "SearchOffsetResponseHeader",
    30: "GetMaxOffsetResponseHeader",
    31: "GetMinOffsetResponseHeader",
    32: "GetEarliestMsgStoretimeResponseHeader",
    101: "GetKVConfigResponseHeader",
    103: "RegisterBrokerResponseHeader",
    201: "GetAllSubscriptionGroupResponseHeader",
    205: "WipeWritePermOfBrokerResponseHeader",
    322: "QueryDataVersionResponseHeader",
    327: "AddWritePermOfBrokerResponseHeader",
    906: "ExchangeHAInfoResponseHeader",
    1001: "AlterSyncStateSetResponseHeader",
    1002: "ElectMasterResponseHeader",
    1003: "RegisterBrokerToControllerResponseHeader",
    1004: "GetReplicaInfoResponseHeader",
    1005: "GetMetaDataResponseHeader",
    1012: "GetNextBrokerIdResponseHeader",
    1013: "ApplyBrokerIdResponseHeader",
    200050: "PopMessageResponseHeader",
    200052: "PopMessageResponseHeader",
    200053: "ChangeInvisibleTimeResponseHeader",
    200054: "NotificationResponseHeader",
    200055: "PollingInfoResponseHeader",
}

NO_JAVA_CLASS = {
    (34, "response"): "Java sets these two entries by hand (ClientManageProcessor.java)",
    (2004, "request"): "Java sets this entry by hand (MQClientAPIImpl.setCommitLogReadAheadMode)",
    **dict.fromkeys(((19002, "request"), (19002, "response")), "a request of ours"),
}
"""Header classes of ours without a class in Java, and why."""


class Pair(NamedTuple):
    """One of our header classes in one of its uses, and the simple name of Java's class."""

    code: int
    direction: str  # request or response
    ours: type
    short: bool
    java: str

    def __str__(self) -> str:
        return f"{self.code}-{self.direction}"


@lru_cache
def pairs() -> tuple[Pair, ...]:
    """All uses of our header classes that Java has a class for."""
    by_code = {
        header.code: header.name
        for header in java_headers("5.5.0").values()
        if "Response" not in header.name
    }
    found = []
    for code, pair in sorted(HEADERS.items()):
        for direction, ours in (("request", pair.request), ("response", pair.response)):
            if ours is None or (code, direction) in NO_JAVA_CLASS:
                continue
            name = (
                _RESPONSES[code]
                if direction == "response"
                else _REQUESTS.get(code) or by_code[code]
            )
            found.append(Pair(code, direction, ours, pair.short and direction == "request", name))
    return tuple(found)
