"""Headers about topics and groups as things that exist: 17, 21, 200s, 215, 216, 300s, 351 to 353.

Source: remoting/…/header/CreateTopicRequestHeader.java and its neighbours.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class CreateTopicHeader:
    """Create or alter a topic (17). ``attributes`` is the comma list of ``+key=value`` and ``-key``."""

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
    """215 to brokers, 216 to name servers; only the latter know ``cluster_name``."""

    topic: str = wire("topic")
    cluster_name: str | None = wire("clusterName", default=None)


@header
class TopicHeader:
    """Only a topic: 202, 300, 351 (with ``logical``: a static topic may be meant), 354."""

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
    """Delete a group (207), with its offsets if asked: 4.x names that wish ``removeOffset``."""

    group: str = wire("groupName")
    clean_offset: bool = wire("cleanOffset", default=False)
    remove_offset: bool | None = wire("removeOffset", default=None)


@header
class GroupHeader:
    """Only a group: 343, 352."""

    group: str = wire("group")


@header
class GroupTopicHeader:
    """A group and a topic (303)."""

    group: str = wire("group")
    topic: str = wire("topic")


@header
class GroupSubscriptionHeader:
    """What a group wants of a topic (345)."""

    group: str = wire("group")
    topic: str | None = wire("topic", default=None)


@header
class GroupForbiddenHeader:
    """Whether a group may read a topic (353); without ``readable`` only ask."""

    group: str = wire("group")
    topic: str = wire("topic")
    readable: bool | None = wire("readable", default=None)
