"""The offsets of consumer groups, kept in consumerOffset.json.

The file has ``topic@group`` -> queue -> next offset to consume. Source:
broker/offset/ConsumerOffsetManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import attrs

from triomq.broker.services.persisted import PersistedTable, Version, load_table, pretty_steps
from triomq.broker.services.table_limits import broker_limits
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.offsets import (
    ConsumerOffsetTable,
    LightOffsetTable,
    MovedOffsetTable,
)
from triomq.remoting.protocol.bodies.schema import write_plain
from triomq.remoting.protocol.bodies.topics import DataVersion
from triomq.remoting.protocol.limits import Limits

# A plain commit is far too frequent to count as a new version of the table: slaves would copy it
# each time.
CHANGES_PER_VERSION = 500
SAVE_SECONDS = 5.0


class Forget(Protocol):
    """Called when a topic, or a group, is deleted."""

    def __call__(self, *, topic: str | None = None, group: str | None = None) -> None: ...


@attrs.define(eq=False)
class OwnCommits:
    """What consumers have committed at a slave while its master was down, until the master knows.

    Java's slave loses it: the master's older table is copied over it.
    """

    commits: dict[tuple[str, str, int], tuple[int, bool]] = attrs.field(factory=dict)
    """(group, topic, queue) -> offset, and whether a commit went back."""

    def note(self, group: str, topic: str, queue_id: int, offset: int, known: int | None) -> None:
        """Record that a consumer has committed ``offset`` in place of ``known``."""
        _, back = self.commits.get((group, topic, queue_id), (0, False))
        self.commits[group, topic, queue_id] = (
            offset,
            back or (known is not None and offset < known),
        )

    def beyond(
        self, committed: Mapping[str, Mapping[str, Mapping[int, int]]]
    ) -> list[tuple[str, str, int, int]]:
        """Return the commits that the master must take over, as (group, topic, queue, offset).

        These are commits ahead of its table, and those that went back.
        """
        found = []
        for (group, topic, queue_id), (offset, back) in self.commits.items():
            theirs = committed.get(group, {}).get(topic, {}).get(queue_id, -1)
            if offset > theirs or (back and offset != theirs):
                found.append((group, topic, queue_id, offset))
        return found

    def forget(self, reported: Mapping[tuple[str, str, int], tuple[int, bool]]) -> None:
        """Drop commits that the master knows now; keep what has been committed since."""
        self.commits = {
            key: value for key, value in self.commits.items() if reported.get(key) != value
        }

    def drop(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Drop the commits of a deleted group or topic.

        The master would use them for the next one of that name.
        """
        self.commits = {
            key: value for key, value in self.commits.items() if group != key[0] and topic != key[1]
        }


@attrs.define(eq=False)
class ConsumerOffsets(PersistedTable):
    """Committed offsets, pending resets, and when operators moved groups.

    All are saved, the latter two under names of our own, which Java skips. Positions of the last
    pulls are not saved.

    The first level is the group, then the topic. A reset is committed at once and stays pending
    until the answer to the group's next pull of that queue has told it; commits in between come
    from a consumer that does not know of the reset yet, and are ignored.
    """

    version: Version
    committed: dict[str, dict[str, dict[int, int]]] = attrs.field(factory=dict)
    pulled: dict[str, dict[str, dict[int, int]]] = attrs.field(factory=dict)
    resets: dict[tuple[str, str], dict[int, int]] = attrs.field(factory=dict)
    """(group, topic) -> queue -> the offset that its next pull must begin with."""
    moved: dict[tuple[str, str], dict[int, int]] = attrs.field(factory=dict)
    """(group, topic) -> queue -> where the log ended when an operator moved the group."""
    light: bool = False
    """Whether the file has a table of its own for groups of light queues."""
    own: OwnCommits | None = None
    """On a slave: what consumers have committed here."""
    limits: Limits = attrs.field(factory=broker_limits)
    unknown_to_slaves: Callable[[], Mapping[tuple[str, str, int], int | None]] = attrs.field(
        default=dict, init=False
    )
    """Returns what slaves may know of (group, topic, queue) instead of its offset; None: nothing.
    Their logs lack what the offset stands for.
    """
    on_forget: list[Forget] = attrs.field(factory=list, init=False)
    """Called with the topic, or the group, that is deleted: others keep progress of it as well."""
    _changes: int = attrs.field(default=0, init=False)
    _count: int | None = attrs.field(default=None, init=False)
    """The number of offsets; None: to be counted again."""

    def committed_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset that the group wants of this queue; None if it never committed."""
        topics = self.committed.get(group)
        queues = topics.get(topic) if topics is not None else None
        return queues.get(queue_id) if queues is not None else None

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, *, from_master: bool = False
    ) -> int:
        """Store an offset, also a smaller one: the consumer decides.

        ``from_master``: whether a slave has it from its master.
        Returns: by how many messages the group went on; 0 for its first offset, and if it went
            back.
        Checkpoint: never.
        """
        queues = self.committed.setdefault(group, {}).setdefault(topic, {})
        known = queues.get(queue_id)
        if known == offset:
            return 0
        if known is None and self._count is not None:
            self._count += 1
        queues[queue_id] = offset
        if self.own is not None and not from_master:
            self.own.note(group, topic, queue_id, offset, known)
        self._changes += 1
        if self._changes % CHANGES_PER_VERSION == 0:
            self.version.bump()
        self.touch()
        return 0 if known is None else max(0, offset - known)

    def require_room(self, group: str, topic: str, queue_id: int) -> None:
        """Refuse a client's first commit of a queue if there are too many offsets.

        Raises: LimitReached. Checkpoint: never.
        """
        if self.committed_offset(group, topic, queue_id) is not None:
            return
        if self._count is None:
            self._count = sum(
                len(queues) for topics in self.committed.values() for queues in topics.values()
            )
        self.limits.require(
            "offsets_max",
            self._count + 1,
            f"the offset of group {group} in {topic}-{queue_id} is not stored",
        )

    def reset(
        self,
        group: str,
        topic: str,
        queues: Mapping[int, int],
        log_end: int,
        *,
        members: bool = True,
    ) -> None:
        """Send a group back or forward in some queues. Checkpoint: never.

        ``log_end``: of the log; what was popped below it says nothing about the group any more;
        ``members``: whether some may be at work that must hear of it.
        """
        for queue_id, offset in queues.items():
            self.commit(group, topic, queue_id, offset)
        if members:
            self.resets.setdefault((group, topic), {}).update(queues)
        self.moved.setdefault((group, topic), {}).update(dict.fromkeys(queues, log_end))
        self.version.bump()
        self.touch()

    def moved_at(self, group: str, topic: str, queue_id: int) -> int:
        """Return where the log ended when an operator moved the group last; 0: never."""
        return self.moved.get((group, topic), {}).get(queue_id, 0) if self.moved else 0

    def forget_moves(self, log_start: int) -> None:
        """Forget moves from before the start of the log: nothing there can contradict them."""
        for key in [key for key, ends in self.moved.items() if max(ends.values()) <= log_start]:
            del self.moved[key]
            self.touch()

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a reset that the group does not know yet. A slave says none: its
        master tells the group.
        """
        if self.own is not None or not self.resets:
            return None
        return self.resets.get((group, topic), {}).get(queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the same offset, and count it as known to the group from now on."""
        offset = self.pending_reset(group, topic, queue_id)
        if offset is None:
            return None
        queues = self.resets[group, topic]
        del queues[queue_id]
        if not queues:
            del self.resets[group, topic]
        self.touch()
        return offset

    def replace(
        self, table: MovedOffsetTable, queue_end: Callable[[str, int], int]
    ) -> list[tuple[str, str, int, int]]:
        """Become a copy of the master's table, except for commits that the master must take over.

        Returns: these commits as (group, topic, queue, offset). Offsets are lowered to
        ``queue_end(topic, queue)``, the end of the own queue: if this slave became the master, the
        group would skip the messages up to a higher offset. Checkpoint: never.
        """
        committed = by_group(table)
        moves = by_key(table.pending_resets), by_key(table.moved_at)
        found = self.own.beyond(committed) if self.own is not None else []
        for group, topic, queue_id, offset in found:
            committed.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
        clamp_offsets(committed, queue_end)
        if committed != self.committed or moves != (self.resets, self.moved):
            self.committed, self._count = committed, None
            self.resets, self.moved = moves
            self.version.load(table.data_version)
            self.touch()
        return found

    def clamp(
        self, queue_end: Callable[[str, int], int], log_end: int
    ) -> list[tuple[str, str, int, int]]:
        """Lower offsets beyond the end of their queue: the group would skip messages.

        Moves count as made at ``log_end`` at most: check points that follow count.

        Returns: these offsets as (group, topic, queue, old offset).
        """
        for ends in self.moved.values():
            for queue_id, end in ends.items():
                if end > log_end:
                    ends[queue_id] = log_end
                    self.touch()
        found = clamp_offsets(self.committed, queue_end)
        if found:
            self.version.bump()
            self.touch()
        return found

    def take_back(self, table: ConsumerOffsetTable) -> int:
        """Take over commits at a slave that acted for this master.

        A table older than this one is ignored. Java compares the versions, too. Two rules are ours:
        no group goes back, since the slave's copy may be some seconds old; and times do not count,
        since a table with few changes has the time of its start.

        Returns: the number of offsets that changed.
        Checkpoint: never.
        """
        if table.data_version is None or order(table.data_version) < order(self.version.current):
            return 0
        taken = 0
        for group, topics in by_group(table).items():
            for topic, queues in topics.items():
                for queue_id, offset in queues.items():
                    if offset > (self.committed_offset(group, topic, queue_id) or 0):
                        self.commit(group, topic, queue_id, offset)
                        taken += 1
        return taken

    def pulled_offset(self, group: str, topic: str, queue_id: int) -> int:
        return self.pulled.get(group, {}).get(topic, {}).get(queue_id, 0)

    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        try:
            self.pulled[group][topic][queue_id] = next_offset
        except KeyError:
            self.pulled.setdefault(group, {}).setdefault(topic, {})[queue_id] = next_offset

    def topics_of(self, group: str) -> list[str]:
        return list(self.committed.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        return [group for group, topics in self.committed.items() if topic in topics]

    def queues_of(self, group: str, topic: str) -> dict[int, int]:
        return dict(self.committed.get(group, {}).get(topic, {}))

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is deleted. Checkpoint: never."""
        changed = False
        self._count = None
        if self.own is not None:
            self.own.drop(topic=topic)
        for topics in self.committed.values():
            changed = topics.pop(topic, None) is not None or changed
        for topics in self.pulled.values():
            topics.pop(topic, None)
        for table in (self.resets, self.moved):
            for key in [key for key in table if key[1] == topic]:
                del table[key]
        if changed:
            self.version.bump()
            self.touch()
        for forget in self.on_forget:
            forget(topic=topic)

    def forget_group(self, group: str) -> None:
        """Forget a group that is deleted. Checkpoint: never."""
        self._count = None
        if self.own is not None:
            self.own.drop(group=group)
        self.pulled.pop(group, None)
        for table in (self.resets, self.moved):
            for key in [key for key in table if key[0] == group]:
                del table[key]
        if self.committed.pop(group, None) is not None:
            self.version.bump()
            self.touch()
        for forget in self.on_forget:
            forget(group=group)

    def encode(self) -> bytes:
        """Return the file's content: a row for each topic and group."""
        return b"".join(self.steps())

    def steps(self) -> Iterator[bytes]:
        content: dict[str, object] = {"dataVersion": write_plain(self.version.current)}
        if self.light:
            content["lmqOffsetTable"] = {
                f"{topic}@{group}": queues[0]
                for group, topics in self.committed.items()
                if is_light(group)
                for topic, queues in topics.items()
                if 0 in queues
            }
        content["offsetTable"] = self._rows
        for name, table in (("pendingResets", self.resets), ("movedAt", self.moved)):
            if table:
                content[name] = by_row(table)
        return pretty_steps(content)

    def _rows(self) -> Iterator[tuple[str, dict[int, int]]]:
        for group, topics in list(self.committed.items()):
            if not (self.light and is_light(group)):
                for topic, queues in list(topics.items()):
                    yield f"{topic}@{group}", queues


def clamp_offsets(
    committed: dict[str, dict[str, dict[int, int]]], queue_end: Callable[[str, int], int]
) -> list[tuple[str, str, int, int]]:
    """Lower offsets beyond the end of their queue to that end.

    Returns: these offsets as (group, topic, queue, old offset).
    """
    found = []
    for group, topics in committed.items():
        for topic, queues in topics.items():
            for queue_id, offset in queues.items():
                end = queue_end(topic, queue_id)
                if offset > end:
                    found.append((group, topic, queue_id, offset))
                    queues[queue_id] = end
    return found


def order(version: DataVersion) -> tuple[int, int]:
    """Return the sort key of a version.

    Source: remoting/protocol/DataVersion.java#compare, which compares the times, too.
    """
    return version.state_version, version.counter


def is_light(group: str) -> bool:
    """Return whether a group reads light queues only; each has one queue, number 0."""
    return group.startswith(names.LMQ_PREFIX)


def open_consumer_offsets(
    directory: Path,
    version: Version,
    *,
    save_seconds: float = SAVE_SECONDS,
    light: bool = False,
    limits: Limits | None = None,
    own: OwnCommits | None = None,
) -> ConsumerOffsets:
    """Load the table of the config directory, or begin with an empty one. Raises: DamagedTable.

    The file is consumerOffset.json, or lmqConsumerOffset.json with ``light`` (enableLmq), where
    groups of light queues have a table of their own. If only the other file exists, its content is
    taken over. Source: broker/offset/LmqConsumerOffsetManager.java.
    """
    ordinary = directory / "consumerOffset.json"
    path = directory / "lmqConsumerOffset.json" if light else ordinary
    loaded = load_table(path, decode_offsets)
    if loaded is None and light:
        loaded = load_table(ordinary, decode_offsets)
    committed, table = loaded or ({}, MovedOffsetTable())
    version.load(table.data_version)
    return ConsumerOffsets(
        path,
        version,
        committed,
        resets=by_key(table.pending_resets),
        moved=by_key(table.moved_at),
        light=light,
        own=own,
        limits=limits or broker_limits(),
        gather_seconds=save_seconds,
    )


def decode_offsets(
    content: bytes,
) -> tuple[dict[str, dict[str, dict[int, int]]], MovedOffsetTable]:
    """Read the table of any RocketMQ release; 4.9 writes only ``offsetTable``."""
    table = MovedOffsetTable.decode(content)
    committed = by_group(table)
    for key, offset in LightOffsetTable.decode(content).lmq_offset_table.items():
        topic, _, group = key.partition("@")
        committed.setdefault(group, {})[topic] = {0: offset}
    return committed, table


def by_row(table: Mapping[tuple[str, str], dict[int, int]]) -> dict[str, dict[int, int]]:
    """Return (group, topic) -> queue -> number as rows of ``topic@group``."""
    return {f"{topic}@{group}": dict(queues) for (group, topic), queues in table.items()}


def by_key(rows: Mapping[str, Mapping[int, int]]) -> dict[tuple[str, str], dict[int, int]]:
    """Return rows of ``topic@group`` as (group, topic) -> queue -> number."""
    table = {}
    for name, queues in rows.items():
        topic, _, group = name.partition("@")
        if queues:
            table[group, topic] = dict(queues)
    return table


def by_group(table: ConsumerOffsetTable) -> dict[str, dict[str, dict[int, int]]]:
    """Return the offsets as group -> topic -> queue -> offset."""
    committed: dict[str, dict[str, dict[int, int]]] = {}
    for key, queues in table.offset_table.items():
        topic, _, group = key.partition("@")
        committed.setdefault(group, {})[topic] = dict(queues)
    return committed
