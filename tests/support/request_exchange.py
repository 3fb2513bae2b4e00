"""Requests and replies between a Java client and our SDK on one cluster: who gets which reply.

There are four pairs: ours or Java's as the requester, ours or Java's as the replier. The Java
program is requester and replier in one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
from processes import java_command

from triomq import Producer, PushConsumer, ReceivedMessage
from triomq.client.admin.admin import Admin

JAVA, OURS = "RepliesOfJava", "RepliesOfOurs"
LONG = "x" * 10_000


@contextmanager
def _java_client(version: str, namesrv: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    """RequestPeer.java, which replies on one topic and sends requests to both."""
    command = java_command(version, "RequestPeer", namesrv, JAVA, OURS, JAVA, heap="256m")
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()


def _lines_until_ready(process: subprocess.Popen[str]) -> list[list[str]]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if line.strip() == "READY":
            return lines
        words = line.rstrip("\n").split("\t")
        if words[0] in ("REPLY", "REPLIED", "FAILED"):  # its logger prints lines of its own
            lines.append(words)
    raise AssertionError(f"the Java client has ended: {lines}")


async def exchange(version: str, namesrv: str, folder: Path) -> None:
    """Let both clients ask both, and check the replies that each of them got."""

    async def handler(message: ReceivedMessage) -> None:
        await message.reply(b"ours: " + message.body)

    async with Admin(namesrv) as admin:
        for topic in (JAVA, OURS):
            await admin.create_topic(topic, queues=2)
    async with (
        PushConsumer(
            namesrv, group="repliers", subscriptions=OURS, handler=handler, consume_from="first"
        ) as consumer,
        Producer(namesrv, group="requesters") as producer,
    ):
        await consumer.wait_assigned()
        with _java_client(version, namesrv, folder / "java.log") as process:
            lines = await trio.to_thread.run_sync(
                _lines_until_ready, process, abandon_on_cancel=True
            )
            found = []
            for topic in (JAVA, OURS):
                for body in ("q0", LONG):
                    reply = await producer.request(topic, body.encode(), timeout=20)
                    found.append(reply.body.decode())
    assert [line[1:] for line in lines if line[0] == "REPLY"] == [
        [topic, text, "TestCluster_REPLY_TOPIC"]
        for topic, who in ((OURS, "ours: "), (JAVA, "java: "))
        for text in (f"{who}q0", f"{who}q1", str(len(who + LONG)))
    ]
    others = {tuple(line) for line in lines if line[0] != "REPLY"}
    assert others == {("REPLIED", "SEND_OK")}, others
    assert found == [f"{who}: {body}" for who in ("java", "ours") for body in ("q0", LONG)]
