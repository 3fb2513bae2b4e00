"""Records of the revive topic: check points and acknowledgements of POP, as JSON.

Source: store/pop/PopCheckPoint.java, AckMsg.java, BatchAckMsg.java, common/PopAckConstants.java.
"""

import attrs

from triomq.remoting.protocol.bodies.schema import JsonBody, json_name

CHECK_POINT_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
LEAD_MS = 1000
"""A check point is delivered this long before its messages come again, so that it is read before
its acknowledgements.
"""

Key = tuple[str, str, int, int, int, str]
"""(topic, group, queue id, start offset, pop time, broker name): what an acknowledgement and its
check point share
"""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CheckPoint(JsonBody):
    """The messages of one pop and one queue, until they are visible again."""

    start_offset: int = attrs.field(metadata=json_name("so"))
    pop_time: int = attrs.field(metadata=json_name("pt"))
    invisible_ms: int = attrs.field(metadata=json_name("it"))
    bits: int = attrs.field(default=0, metadata=json_name("bm"))
    """Bit i: the i-th message is acknowledged."""
    count: int = attrs.field(default=0, metadata=json_name("n"))
    queue_id: int = attrs.field(metadata=json_name("q"))
    topic: str = attrs.field(metadata=json_name("t"))
    group: str = attrs.field(metadata=json_name("c"))
    revive_offset: int = attrs.field(default=0, metadata=json_name("ro"))
    """The record's own offset in the revive topic; readers set it."""
    differences: list[int] = attrs.field(factory=list, metadata=json_name("d"))
    """Offset of each message less ``start_offset``; empty in the old form: 0, 1, 2, …"""
    broker_name: str = attrs.field(default="", metadata=json_name("bn"))
    puts: str | None = attrs.field(default=None, metadata=json_name("rp"))
    """How often it was stored again, as a text; None: never."""
    suspend: bool = attrs.field(default=False, metadata=json_name("sp"))
    log_end: int | None = attrs.field(default=None, metadata=json_name("le"))
    """Where the log ended at the pop; ours, and unknown to Java, whose readers ignore it."""

    @property
    def key(self) -> Key:
        return (
            self.topic,
            self.group,
            self.queue_id,
            self.start_offset,
            self.pop_time,
            self.broker_name,
        )

    @property
    def visible_at(self) -> int:
        """When its messages come again (ms)."""
        return self.pop_time + self.invisible_ms

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of its messages."""
        differences = self.differences or range(self.count)
        return [self.start_offset + difference for difference in differences]

    def has(self, queue_offset: int, log_offset: int) -> bool:
        """Return whether a stored message is one of those that were popped.

        One that was stored after the pop is of a new topic of this name. The place in the log says
        so whatever the clocks did. Java's check points have no place: then the message counts,
        since one that comes twice is better than one that is lost.
        """
        return queue_offset in self.offsets and (self.log_end is None or log_offset < self.log_end)

    @property
    def unique_key(self) -> str:
        """The property UNIQ_KEY of the record."""
        return (
            f"{self.topic}@{self.queue_id}@{self.start_offset}@{self.group}@{self.pop_time}"
            f"@{self.broker_name}@{CHECK_POINT_TAG}"
        )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Ack(JsonBody):
    """An acknowledged message, or several of one check point."""

    offset: int = attrs.field(metadata=json_name("ao"))
    """-1: see ``more``."""
    start_offset: int = attrs.field(metadata=json_name("so"))
    group: str = attrs.field(metadata=json_name("c"))
    topic: str = attrs.field(metadata=json_name("t"))
    queue_id: int = attrs.field(metadata=json_name("q"))
    pop_time: int = attrs.field(metadata=json_name("pt"))
    broker_name: str = attrs.field(default="", metadata=json_name("bn"))
    more: list[int] | None = attrs.field(default=None, metadata=json_name("aol"))

    @property
    def key(self) -> Key:
        return (
            self.topic,
            self.group,
            self.queue_id,
            self.start_offset,
            self.pop_time,
            self.broker_name,
        )

    @property
    def offsets(self) -> list[int]:
        """The acknowledged queue offsets."""
        return self.more if self.more is not None else [self.offset]

    @property
    def tag(self) -> str:
        return ACK_TAG if self.more is None else BATCH_ACK_TAG

    @property
    def unique_key(self) -> str:
        """The property UNIQ_KEY of the record."""
        return (
            f"{self.topic}@{self.queue_id}@{self.offset}@{self.group}@{self.pop_time}"
            f"@{self.broker_name}@{ACK_TAG}"
        )
