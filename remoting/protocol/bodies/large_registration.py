"""A large plain body of REGISTER_BROKER (103), read topic by topic.

A parser in C holds the interpreter's lock until it returns, in a thread as well: 0.1 s for 60,000
topics, and seconds for 16 MiB of hostile JSON. So each call parses one member of bounded length,
and members that a registration does not need are skipped.
"""

import re
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any

import attrs

from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicTable
from triomq.remoting.protocol.fastjson import REQUEST_LIMITS, loads

TOPICS_MAX = 200_000
"""The most topics of one registration, in either of its forms."""
MEMBER_CHARACTERS = (1024, 65_536)
"""Characters to search for the end of a member: enough for most topics, then the limit."""
SKIPPED_DEPTH_MAX = 4
_FIX = "send the body as RegisterBrokerBody of RocketMQ 4.x or 5.x does"
_BLANKS = re.compile(r"[ \t\r\n]{0,65536}")


def read_large_registration(data: bytes) -> tuple[TopicTable, list[str]]:
    """Return the topics and the filter servers.

    Raises: RemoteProtocolError if the body is not standard JSON, or has more than ``TOPICS_MAX``
    topics or a member that is too long.
    """
    cursor = _Cursor(str(data, "utf-8", "replace"))
    table, servers = TopicTable(), None
    for name in cursor.members():
        if name == "topicConfigSerializeWrapper":
            table = _read_wrapper(cursor)
        elif name == "filterServerList":
            servers = cursor.value()
        else:
            cursor.skip()
    cursor.require_end()
    return table, [str(server) for server in servers] if isinstance(servers, list) else []


def _read_wrapper(cursor: "_Cursor") -> TopicTable:
    topics: dict[str, TopicConfig] = {}
    mappings: dict[str, Any] | None = None
    others: dict[str, Any] = {}
    for name in cursor.members():
        if name == "topicConfigTable":
            topics = {topic: TopicConfig.from_plain(cursor.value()) for topic in cursor.members()}
        elif name == "topicQueueMappingInfoMap":
            mappings = {topic: cursor.value() for topic in cursor.members()}
        elif name in ("dataVersion", "mappingDataVersion"):
            others[name] = cursor.value()
        else:
            cursor.skip()
    return attrs.evolve(
        TopicTable.from_plain(others),
        topic_config_table=topics,
        topic_queue_mapping_info_map=mappings,
    )


class _Cursor:
    """A position in the text of a JSON document."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._find_end = JSONDecoder().raw_decode

    def members(self) -> Iterator[str]:
        """Yield the names of the object that begins here; for null, no names.

        The caller reads or skips the value of a member before it asks for the next name.
        """
        if self._next() != "{":
            if self._member() != "null":
                raise self._complaint("an object is missing")
            return
        self._position += 1
        if self._next() == "}":
            self._position += 1
            return
        for _ in range(TOPICS_MAX):
            name = loads(self._member())
            if not isinstance(name, str) or self._take() != ":":
                raise self._complaint("a name and a colon are missing")
            yield name
            after = self._take()
            if after == "}":
                return
            if after != ",":
                raise self._complaint("',' or '}' expected")
        raise RemoteProtocolError(
            f"the registration has an object of more than {TOPICS_MAX} members",
            "delete topics that nothing uses",
        )

    def value(self) -> Any:
        """Return the value that begins here."""
        return loads(self._member(), REQUEST_LIMITS)

    def skip(self, depth: int = SKIPPED_DEPTH_MAX) -> None:
        """Skip the value here; ``depth`` levels of objects may be longer than a member."""
        if depth and self._next() == "{":
            for _ in self.members():
                self.skip(depth - 1)
        else:
            self._member()

    def require_end(self) -> None:
        """Refuse text other than blanks."""
        if self._next():
            raise self._complaint("text after the end of the value")

    def _member(self) -> str:
        start = self._start()
        for size in MEMBER_CHARACTERS:
            window = self._text[start : start + size]
            try:
                _, end = self._find_end(window)
            except (ValueError, RecursionError):
                continue
            if end < len(window) or start + size >= len(self._text):  # otherwise a number may go on
                self._position = start + end
                return window[:end]
        raise self._complaint(f"no value, or one of more than {MEMBER_CHARACTERS[-1]:,} characters")

    def _start(self) -> int:
        blanks = _BLANKS.match(self._text, self._position)
        assert blanks is not None, "the expression matches the empty text"
        self._position = blanks.end()
        return self._position

    def _next(self) -> str:
        start = self._start()
        return self._text[start : start + 1]

    def _take(self) -> str:
        character = self._next()
        self._position += 1
        return character

    def _complaint(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"bad JSON near character {self._position} of a registration: {what}", _FIX
        )
