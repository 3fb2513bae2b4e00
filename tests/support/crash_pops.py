"""POP in the crash loop: a consumer of the loop's topic that acknowledges most of what it takes.

What was acknowledged in time never comes again, after any number of kills; the rest comes; and no
message is given out twice within its invisible time. A message that came while the broker died, or
whose acknowledgement had no answer, proves nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import attrs
from pop_peer import Popped, popped

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.pop import BatchAck, BatchAckBody, offset_bits
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.pop import PopMessageHeader

BROKER, GROUP = "broker-a", "G"
INVISIBLE_MS = 4_000
SLACK_SECONDS = 0.5
"""Before the end of its invisible time no acknowledgement counts as in time."""
QUIET_SECONDS = INVISIBLE_MS / 1000 + 3
"""When nothing has come for so long, nothing is in flight any more."""


@attrs.define(eq=False)
class PopLedger:
    """What a consumer has seen in all rounds. ``path``: the names that must not come again."""

    path: Path
    finished: set[str] = attrs.field(factory=set)
    unclear: set[str] = attrs.field(factory=set)
    """An acknowledgement was sent, and had no answer in time."""
    hidden_to: dict[str, float] = attrs.field(factory=dict)
    """Of this round."""
    wrong: list[str] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                kind, _, name = line.partition(" ")
                (self.finished if kind == "finished" else self.unclear).add(name)

    def begin_round(self) -> None:
        self.hidden_to.clear()

    def save(self) -> None:
        """Write everything: a run that was stopped goes on."""
        lines = [f"finished {name}" for name in sorted(self.finished)]
        lines += [f"unclear {name}" for name in sorted(self.unclear)]
        self.path.write_text("\n".join(lines))

    def take(self, names: Iterable[str], asked: float) -> None:
        for name in names:
            if name in self.finished:
                self.wrong.append(f"{name} was acknowledged, and came again")
            if time.time() < self.hidden_to.get(name, 0) - SLACK_SECONDS:
                self.wrong.append(f"{name} came while it was hidden")
            self.hidden_to[name] = asked + INVISIBLE_MS / 1000


class Popper(threading.Thread):
    """One consumer, until its connection breaks; with ``share`` 1, until nothing comes."""

    def __init__(self, address: str, topic: str, ledger: PopLedger, share: float, seed: int):
        super().__init__(daemon=True)
        self.address, self.topic, self.ledger, self.share = address, topic, ledger, share
        self.choose = random.Random(seed)
        self.taken = 0

    def run(self) -> None:
        last = time.time()
        try:
            with BlockingConnection(self.address) as connection:
                while self.share < 1 or time.time() < last + QUIET_SECONDS:
                    if self._pop(connection):
                        last = time.time()
        except (RemotingError, OSError):
            return

    def _pop(self, connection: BlockingConnection) -> bool:
        asked = time.time()
        header = PopMessageHeader(GROUP, self.topic, -1, 32, INVISIBLE_MS, 200, 0, 0)
        answer = connection.invoke(request(Code.POP_MESSAGE, header), timeout=10)
        if answer.code:
            time.sleep(0.1)  # no topic yet, or nothing came
            return False
        found = popped(answer, self.topic, BROKER)
        self.taken += len(found)
        self.ledger.take((_name(each) for each in found), asked)
        chosen = [each for each in found if self.choose.random() < self.share]
        if chosen:
            self._acknowledge(connection, chosen, asked)
        return True

    def _acknowledge(
        self, connection: BlockingConnection, chosen: list[Popped], asked: float
    ) -> None:
        names = {_name(each) for each in chosen}
        self.ledger.unclear |= names
        places: dict[tuple[str, int, int], list[Popped]] = {}
        for each in chosen:
            handle = each.handle
            place = each.topic, handle.queue_id, handle.start_offset
            places.setdefault(place, []).append(each)
        acks = [
            BatchAck(
                consumer_group=GROUP,
                topic=topic,
                start_offset=start,
                queue_id=queue_id,
                revive_queue_id=group[0].handle.revive_queue,
                pop_time=group[0].handle.pop_time,
                invisible_ms=INVISIBLE_MS,
                bits=offset_bits(start, [each.handle.offset for each in group]),
            )
            for (topic, queue_id, start), group in places.items()
        ]
        command = request(Code.BATCH_ACK_MESSAGE, None, BatchAckBody(BROKER, acks).encode())
        answer = connection.invoke(command, timeout=10)
        if answer.code == 0 and time.time() < asked + INVISIBLE_MS / 1000 - SLACK_SECONDS:
            self.ledger.finished |= names
            self.ledger.unclear -= names


def _name(taken: Popped) -> str:
    return taken.body.partition(b":")[0].decode()
