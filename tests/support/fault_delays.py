"""The clients of a fault test that send delayed messages, and consumers that give some of them
back: part of ``fault_clients``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection

import attrs
import trio
from crash_loop import body_of, is_whole
from fault_history import DELAYED_TOPIC, Outcome
from fault_sends import CONSUMER, producing, send

from triomq import PushConsumer
from triomq.client.core.errors import TrioMQError
from triomq.client.receiving.received import ReceivedMessage

SENDERS, MEMBERS = 2, 2
GROUP = "delayed"
LEVELS = "2s 3s"
"""The brokers' ``messageDelayLevel``."""
DELAYS = (2.0, 3.0)
GIVEN_BACK_MAX = 2
PAUSE_SECONDS = 0.1


@attrs.define(eq=False)
class DelayedClients:
    """``note`` writes an event down; ``stopping`` ends the senders."""

    namesrv: str
    seed: int
    note: Callable[..., None]
    stopping: trio.Event
    acknowledged: set[str] = attrs.field(factory=set)
    done: set[str] = attrs.field(factory=set)
    given_back: set[str] = attrs.field(factory=set)
    """And not handled again yet."""

    async def send(self, number: int) -> None:
        """One message after the other."""
        choose = random.Random(f"{self.seed}/delayed {number}")
        async with producing(self.namesrv) as producer:
            count = 0
            while not self.stopping.is_set():
                name = f"d{number}.{count}"
                count += 1
                level = choose.choice((1, 2))
                begun = time.monotonic()
                outcome, _ = await send(
                    producer, DELAYED_TOPIC, body_of(name, 20).encode(), delay_level=level
                )
                self.note(
                    "delayed", begun, time.monotonic(), name, DELAYS[level - 1], outcome, False
                )
                if outcome is Outcome.ACKNOWLEDGED:
                    self.acknowledged.add(name)
                await trio.sleep(PAUSE_SECONDS)

    async def consume(self, number: int) -> None:
        """A member of the group, for ever."""
        choose = random.Random(f"{self.seed}/delayed member {number}")

        async def handle(message: ReceivedMessage) -> None:
            name, again = name_of(message.body), message.queue.topic != DELAYED_TOPIC
            content = message.reconsume_times >= GIVEN_BACK_MAX or choose.random() < 0.8
            now = time.monotonic()
            self.note("arrived", now, name, content, again)
            if content:
                self.done.add(name)
                self.given_back.discard(name)
                await trio.lowlevel.checkpoint()
            else:
                self.given_back.add(name)
                self.note("delayed", now, now, name, DELAYS[0], Outcome.DOUBTFUL, True)
                await message.retry(1)

        while True:
            try:
                async with PushConsumer(
                    self.namesrv,
                    group=GROUP,
                    subscriptions=DELAYED_TOPIC,
                    handler=handle,
                    consume_from="first",
                    settings=CONSUMER,
                ):
                    await trio.sleep_forever()
            except TrioMQError as error:  # no name server at the start
                self.note("note", time.monotonic(), f"delayed consumer: {error}")
                await trio.sleep(0.2)

    def missing(self, delivered: Collection[str]) -> int:
        """Return how many messages have not come yet, to the topic or to the group; what was given
        back comes or is lost, which others judge.
        """
        return len(self.acknowledged - set(delivered)) + len(
            set(delivered) - self.done - self.given_back
        )


def name_of(body: bytes) -> str:
    """Return the name in a body; "?name" if the body is not whole."""
    text = body.decode(errors="replace")
    name = text.partition(":")[0]
    return name if text.count(":") == 2 and is_whole(text) else f"?{name}"
