"""Topics of brokers, and lists of topics by name servers.

Requests: 18, 21, 103 (its table), 206, 224, 304, 305, 322, 351.

Source: common/…/TopicConfig.java, remoting/…/protocol/DataVersion.java,
body/TopicConfigSerializeWrapper.java, TopicList.java.
"""

from typing import Any

import attrs

from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(eq=False, repr=False)
class DataVersion(JsonBody):
    """The version of a table: the table changed if any of the three members differs."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> "DataVersion":
        """Return the version after one more change."""
        return DataVersion(self.state_version, now_ms, self.counter + 1)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TopicConfig(JsonBody):
    """One topic of one broker. ``perm``: 4 read, 2 write, 1 inherit."""

    topic_name: str
    read_queue_count: int = named("readQueueNums", default=16)
    write_queue_count: int = named("writeQueueNums", default=16)
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class TopicTable(JsonBody):
    """All topics of a broker with the version of the table (21, and inside 103)."""

    topic_config_table: dict[str, TopicConfig] = attrs.field(factory=dict)
    data_version: DataVersion = attrs.field(factory=DataVersion)
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_detail_map: dict[str, Any] | None = None
    topic_queue_mapping_info_map: dict[str, Any] | None = None


@attrs.frozen(eq=False, repr=False)
class TopicConfigList(JsonBody):
    """Body of 18."""

    topic_config_list: list[TopicConfig] = attrs.field(factory=list)


@attrs.frozen(eq=False, repr=False)
class TopicNames(JsonBody):
    """Answer to 206, 224, 304 (with ``broker_addr``), 305 and 343."""

    topic_list: list[str] = attrs.field(factory=list)
    broker_addr: str | None = None
