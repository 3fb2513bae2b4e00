"""The official Java and Go clients as programs that live as long as a module of tests and carry out
its requests, so that each module starts a JVM only once.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import foreign_peers
from processes import PEERS, java_command

NAMES = itertools.count(1)
ANSWERS = {"SENT", "READ", "VALUE", "DONE", "FAILED"}


class Refused(Exception):
    """The client raised something; the text is its own."""


@attrs.frozen
class Sent:
    """What the client says of a message that it sent."""

    status: str
    message_id: str
    offset_message_id: str
    broker: str
    queue_id: int
    queue_offset: int


@attrs.frozen
class Got:
    """A message as the client gave it to its listener or caller; ``together`` is how many came at
    once.
    """

    queue_id: int
    queue_offset: int
    reconsume_times: int
    tag: str
    keys: str
    message_id: str
    together: int
    body: str

    @classmethod
    def of(cls, words: list[str]) -> Got:
        return cls(
            int(words[0]),
            int(words[1]),
            int(words[2]),
            words[3],
            words[4],
            words[5],
            int(words[6]),
            words[7],
        )


@attrs.define(eq=False)
class ForeignClient:
    """A running ClientPeer.java or go/main.go; requests one at a time, from one thread."""

    peer: str
    process: subprocess.Popen[str]
    _answer: list[list[str]] = attrs.field(factory=list)
    _got: dict[str, list[list[str]]] = attrs.field(factory=lambda: defaultdict(list))
    _ended: bool = False
    _news: threading.Condition = attrs.field(factory=threading.Condition)

    def read(self) -> None:
        """Take in what it prints, in a thread of its own."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.rstrip("\n").split("\t")
            with self._news:
                if words[0] == "GOT":
                    self._got[words[1]].append(words[2:])
                elif words[0] in ANSWERS:  # 4.9.4 now and then prints a line of its own
                    self._answer.append(words)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait(
        self, condition: Callable[[], bool], what: Callable[[], object], seconds: float = 60
    ) -> None:
        foreign_peers.note(self.peer)
        deadline = time.monotonic() + seconds
        with self._news:
            while not condition():
                assert not self._ended, f"{self.peer} has ended: {what()}"
                assert self._news.wait(deadline - time.monotonic()) or condition(), (
                    f"{self.peer}: {what()}"
                )

    def ask(self, *words: object) -> list[list[str]]:
        """Let it do one thing; the lines of its answer. Errors: ``Refused`` with the client's own
        text.
        """
        assert self.process.stdin is not None
        self._answer.clear()
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        self.wait(
            lambda: bool(self._answer) and self._answer[-1][0] in {"DONE", "FAILED"},
            lambda: f"no answer to {words}, only {self._answer}",
        )
        *lines, last = self._answer
        if last[0] == "FAILED":
            raise Refused(last[1])
        return lines

    def send(
        self, topic: str, mode: str, count: int, *, tag: str = "TagA", argument: object = "-"
    ) -> list[Sent]:
        """Send body-0, body-1, … with keys key-0, … and a property ``number``; see the programs for
        the modes.
        """
        return [
            Sent(*line[1:5], int(line[5]), int(line[6]))
            for line in self.ask("send", topic, mode, count, tag, argument)
        ]

    def got(self, name: str) -> list[Got]:
        """What a running push consumer has got so far."""
        with self._news:
            return [Got.of(words) for words in self._got[name]]

    def wait_got(self, name: str, count: int) -> list[Got]:
        """Until it has got so many."""
        self.wait(
            lambda: len(self._got[name]) >= count,
            lambda: f"{count} deliveries expected: {self._got[name]}",
        )
        return self.got(name)

    def numbers(self, name: str) -> list[int]:
        """What a watching lite pull consumer was told: how many queues there are."""
        with self._news:
            return [int(words[0]) for words in self._got[name]]

    @contextmanager
    def consuming(
        self,
        topic: str,
        group: str,
        *,
        tags: str = "*",
        mode: str = "concurrent",
        begin: str = "first",
        batch: int = 1,
        reconsume_max: int = 16,
    ) -> Iterator[str]:
        """Run a push consumer for the block; yields its name."""
        name = f"consumer-{next(NAMES)}"
        self.ask("push", name, topic, group, tags, mode, begin, batch, reconsume_max)
        try:
            yield name
        finally:
            self.ask("stop", name)

    def consumed(self, topic: str, group: str, count: int, **more: str) -> list[Got]:
        """What a push consumer gets until it has so many; then it stops."""
        with self.consuming(topic, group, **more) as name:
            return self.wait_got(name, count)


@contextmanager
def foreign_client(
    peer: str, namesrv: str, folder: Path, **environment: str
) -> Iterator[ForeignClient]:
    """Run the program of a column of docs/compatibility.md for the block; its files go to the
    folder.
    """
    if peer == "go-client":
        command = [str(PEERS / "go" / "peer"), namesrv]
    else:
        define = [
            f"rocketmq.client.localOffsetStoreDir={folder}",
            "user.timezone=UTC",
            "rocketmq.client.rebalance.waitInterval=1000",
        ]
        command = java_command(
            peer.removeprefix("java-client-"), "ClientPeer", namesrv, heap="256m", define=define
        )
    with (folder / f"{peer}.log").open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "HOME": str(folder), **environment},
        )
    client = ForeignClient(peer, process)
    reader = threading.Thread(target=client.read)
    reader.start()
    try:
        yield client
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.kill()
        process.wait()
        reader.join()
        process.stdin.close()
        process.stdout.close()
