"""Headers of the tables of topics and groups: 17, 21, 200s, 215, 216, 300s, 351 to 353.

Source: remoting/…/header/CreateTopicRequestHeader.java and the classes beside it.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class CreateTopicHeader:
    """Create or alter a topic (17); ``attributes`` are ``+key=value`` and ``-key``, by commas."""

    topic: str = wire("topic")
    default_topic: str = wire("defaultTopic")
    read_queue_count: int = wire("readQueueNums")
    write_queue_count: int = wire("writeQueueNums")
    perm: int = wire("perm")
    topic_filter_type: str = wire("topicFilterType", default="SINGLE_TAG")
    topic_sys_flag: int | None = wire("topicSysFlag", default=None)
    order: bool = wire("order", default=False)
    attributes: str | None = wire("attributes", default=None)
    force: bool | None = wire("force", default=None)


@header
class DeleteTopicHeader:
    """Header of 215 to brokers and 216 to name servers; only those read ``cluster_name``."""

    topic: str = wire("topic")
    cluster_name: str | None = wire("clusterName", default=None)


@header
class TopicHeader:
    """A topic: 202, 300, 351 and 354; ``logical`` says that the topic may be static (351)."""

    topic: str = wire("topic")
    logical: bool | None = wire("lo", default=None)


@header
class AllTopicsHeader:
    """One page of all topics (21); without any field: all at once."""

    first: int | None = wire("topicSeq", default=None)
    data_version: str | None = wire("dataVersion", default=None)
    count_max: int | None = wire("maxTopicNum", default=None)


@header
class AllTopicsResponseHeader:
    total: int | None = wire("totalTopicNum", default=None)


@header
class AllGroupsHeader:
    """One page of all subscription groups (201); without any field: all at once."""

    first: int | None = wire("groupSeq", default=None)
    data_version: str | None = wire("dataVersion", default=None)
    count_max: int | None = wire("maxGroupNum", default=None)


@header
class AllGroupsResponseHeader:
    total: int | None = wire("totalGroupNum", default=None)


@header
class DeleteGroupHeader:
    """Delete a group (207), and its offsets if asked; 4.x has ``removeOffset`` for that."""

    group: str = wire("groupName")
    clean_offset: bool = wire("cleanOffset", default=False)
    remove_offset: bool | None = wire("removeOffset", default=None)


@header
class GroupHeader:
    """A group: 343 and 352."""

    group: str = wire("group")


@header
class GroupTopicHeader:
    """A group and a topic (303)."""

    group: str = wire("group")
    topic: str = wire("topic")


@header
class GroupSubscriptionHeader:
    """The subscription of a group to a topic (345)."""

    group: str = wire("group")
    topic: str | None = wire("topic", default=None)


@header
class GroupForbiddenHeader:
    """Permission of a group to read a topic (353); without ``readable`` a question."""

    group: str = wire("group")
    topic: str = wire("topic")
    readable: bool | None = wire("readable", default=None)
