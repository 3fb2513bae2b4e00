"""Wrong programs of beginners: the error says what went wrong and what to do, in few lines.

Each program runs as it stands, with ``namesrv`` for the address of a cluster. What a user sees is
the traceback that Python prints: at most ``OWN_LINES_MAX`` of its lines show code of this package.
"""

from __future__ import annotations

import asyncio
import re
import socket
import textwrap
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import triomq
from triomq import sync
from triomq.testing import server_in_thread

OWN_LINES_MAX = 12
SERVER = {"autoCreateTopicEnable": "false", "enablePropertyFilter": "true"}
ROOT = Path(__file__).resolve().parents[3]
OWN = tuple(str(ROOT / name) for name in ("broker", "client", "namesrv", "remoting", "triomq"))


@attrs.frozen
class Wrong:
    """A program, and what its error has to say."""

    title: str
    program: str
    error: str
    """name of the class"""
    says: tuple[str, ...]
    """what went wrong, and what to do"""

    @property
    def source(self) -> str:
        return textwrap.dedent(self.program)


def in_trio(title: str, body: str, error: str, *says: str) -> Wrong:
    lines = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return Wrong(title, f"async def main():\n{lines}\n\ntrio.run(main)\n", error, says)


def in_asyncio(title: str, body: str, error: str, *says: str) -> Wrong:
    lines = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return Wrong(title, f"async def main():\n{lines}\n\nasyncio.run(main())\n", error, says)


def plain(title: str, program: str, error: str, *says: str) -> Wrong:
    return Wrong(title, program, error, says)


def sending(title: str, call: str, error: str, *says: str) -> Wrong:
    """Return a program with one call of a running producer."""
    return in_trio(
        title, f"async with Producer(namesrv, group='g') as producer:\n    {call}", error, *says
    )


def setting(title: str, call: str, *says: str) -> Wrong:
    return plain(title, call, "SettingsError", *says)


def handling(title: str, handler: str, error: str, *says: str) -> Wrong:
    """Return a program with a handler."""
    program = (
        f"{handler}\n"
        "async def main():\n"
        "    async with PushConsumer(\n"
        "        namesrv, group='handling', subscriptions='Orders', consume_from='first',\n"
        "        handler=handle,\n"
        "    ):\n"
        "        await trio.sleep(20)\n"
        "trio.run(main)\n"
    )
    return Wrong(title, program, error, says)


PROGRAMS = [
    # Addresses
    in_trio(
        "nobody listens there",
        "async with Producer(nobody, group='g', settings=IMPATIENT): pass",
        "NoNameServer",
        "refused",
        "check that a name server (mqnamesrv) runs there",
    ),
    plain(
        "nobody listens there, blocking",
        "with sync.Producer(nobody, group='g', settings=IMPATIENT): pass",
        "NoNameServer",
        "check that a name server (mqnamesrv) runs there",
    ),
    in_trio(
        "the broker's address",
        "async with Producer(broker, group='g', settings=IMPATIENT) as producer:\n"
        "    await producer.send('Orders', b'x')",
        "NoNameServer",
        "this is a broker",
        "address of a name server",
    ),
    in_trio(
        "a host that does not exist",
        "async with Producer('no-such-host.invalid:9876', group='g', settings=IMPATIENT): pass",
        "NoNameServer",
        "no-such-host.invalid:9876",
        "check that a name server",
    ),
    setting("no port", "Producer('localhost', group='g')", "has no port", "host:port"),
    setting("a port that is none", "Producer('localhost:abc', group='g')", "port", "host:port"),
    setting("a port too high", "Producer('localhost:98760', group='g')", "98760", "65535"),
    setting("a port alone", "Producer(9876, group='g')", "not 9876", "'host:port'"),
    setting("a tuple", "Producer(('localhost', 9876), group='g')", "not ('localhost', 9876)"),
    setting("bytes", "Producer(b'localhost:9876', group='g')", "must be a text", "'host:port'"),
    plain("no address", "Producer(group='g')", "NoNameServer", "first argument", "NAMESRV_ADDR"),
    plain("an empty address", "Producer('', group='g')", "NoNameServer", "NAMESRV_ADDR"),
    # Groups and topics
    plain("no group", "Producer(namesrv)", "TypeError", "group"),
    setting("an empty group", "Producer(namesrv, group='')", "group", "1 to"),
    setting("a group with a space", "Producer(namesrv, group='my group')", "my group", "letters"),
    setting("a group that is none", "Producer(namesrv, group=7)", "group", "text", "int"),
    setting("Java's default group", "Producer(namesrv, group='DEFAULT_PRODUCER')", "another name"),
    sending("a topic with a dot", "await producer.send('my.topic', b'x')", "TopicInvalid", "."),
    sending("a topic in bytes", "await producer.send(b'T', b'x')", "TopicInvalid", ".decode()"),
    sending(
        "an unknown topic",
        "await producer.send('Odrers', b'x')",
        "RouteNotFound",
        "no broker offers topic 'Odrers'",
        "mqadmin topic create",
    ),
    sending("a system topic", "await producer.send('SCHEDULE_TOPIC_XXXX', b'x')", "TopicInvalid"),
    # Messages
    sending("a text as body", "await producer.send('Orders', 'x')", "MessageInvalid", ".encode()"),
    sending(
        "a dict as body",
        "await producer.send('Orders', {'id': 1})",
        "MessageInvalid",
        "not dict",
        "json.dumps",
    ),
    sending("no body", "await producer.send('Orders')", "MessageInvalid", "body"),
    sending("an empty body", "await producer.send('Orders', b'')", "MessageInvalid", "empty body"),
    sending(
        "a body too large",
        "await producer.send('Orders', bytes(5 << 20))",
        "MessageInvalid",
        "message_bytes_max",
    ),
    sending(
        "keys as one text",
        "await producer.send('Orders', b'x', keys='k')",
        "MessageInvalid",
        "keys=['k']",
    ),
    sending(
        "a number as key",
        "await producer.send('Orders', b'x', keys=[7])",
        "MessageInvalid",
        "str(7)",
    ),
    sending(
        "tags as a list", "await producer.send('Orders', b'x', tag=['a'])", "MessageInvalid", "tag"
    ),
    sending(
        "Java's word for tag", "await producer.send('Orders', b'x', tags='a')", "TypeError", "tags"
    ),
    sending(
        "properties with a number",
        "await producer.send('Orders', b'x', properties={'n': 1})",
        "MessageInvalid",
        "str()",
    ),
    sending(
        "a delay in milliseconds as text",
        "await producer.send('Orders', b'x', delay='5000')",
        "MessageInvalid",
        "seconds",
    ),
    sending(
        "a time without zone",
        "await producer.send('Orders', b'x', deliver_at=datetime.datetime(2030, 1, 1))",
        "MessageInvalid",
        "time zone",
    ),
    sending(
        "a delay of a week",
        "await producer.send('Orders', b'x', delay=7 * 86400)",
        "MessageRefused",
        "timerMaxDelaySec",
    ),
    sending(
        "a queue that is none",
        "await producer.send('Orders', b'x', queue=99)",
        "MessageInvalid",
        "queues 0 to",
    ),
    sending(
        "a dict as message",
        "await producer.send_batch([{'topic': 'Orders'}])",
        "MessageInvalid",
        "Message(topic=…, body=…)",
    ),
    sending("a receipt of nothing", "await producer.recall('7F00')", "MessageInvalid", "receipt"),
    # async
    in_trio(
        "a forgotten async with",
        "producer = Producer(namesrv, group='g')\nawait producer.send('Orders', b'x')",
        "NotRunning",
        "not running",
        "async with",
    ),
    in_trio(
        "with in place of async with",
        "with Producer(namesrv, group='g') as producer: pass",
        "TypeError",
        "async with",
        "triomq.sync.Producer",
    ),
    plain(
        "async with in place of with",
        "async def main():\n"
        "    async with sync.Producer(namesrv, group='g') as producer: pass\n"
        "trio.run(main)\n",
        "TypeError",
        "triomq.Producer",
        "`with`",
    ),
    in_trio(
        "after the block",
        "async with Producer(namesrv, group='g') as producer: pass\n"
        "await producer.send('Orders', b'x')",
        "NotRunning",
        "async with",
    ),
    plain(
        "after the block, blocking",
        "with sync.Producer(namesrv, group='g') as producer: pass\nproducer.send('Orders', b'x')",
        "NotRunning",
        "start()",
    ),
    plain(
        "before the start, blocking",
        "sync.Producer(namesrv, group='g').send('Orders', b'x')",
        "NotRunning",
        "start()",
    ),
    in_asyncio(
        "Trio's class under asyncio",
        "async with Producer(namesrv, group='g') as producer: pass",
        "NotRunning",
        "asyncio",
        "triomq.aio.Producer",
    ),
    in_asyncio(
        "before the start, asyncio",
        "await aio.Producer(namesrv, group='g').send('Orders', b'x')",
        "NotRunning",
        "start()",
    ),
    in_trio(
        "asyncio's class under Trio",
        "async with aio.Producer(namesrv, group='g') as producer:\n"
        "    await producer.send('Orders', b'x')",
        "NotRunning",
        "asyncio",
        "triomq.Producer",
    ),
    # Consumers
    setting(
        "a subscription that is none",
        "PushConsumer(namesrv, group='g', subscriptions=5)",
        "subscriptions",
        "topic",
    ),
    setting("no subscription", "PushConsumer(namesrv, group='g', subscriptions=[])", "topic"),
    setting(
        "a start that is none",
        "PushConsumer(namesrv, group='g', subscriptions='T', consume_from='begin')",
        "'begin'",
        "first",
    ),
    setting(
        "a number of threads",
        "PushConsumer(namesrv, group='g', subscriptions='T', concurrency=0)",
        "concurrency must be 1 or greater",
    ),
    in_trio(
        "wrong SQL",
        "async with PushConsumer(\n"
        "    namesrv, group='sql', subscriptions={'Orders': Sql('price >')}\n"
        "): pass",
        "SubscriptionInvalid",
        "the expression ends",
        "correct the filter expression",
    ),
    handling(
        "a handler that is not async", "def handle(message): pass", "HandlerInvalid", "async def"
    ),
    handling(
        "a handler without message", "async def handle(): pass", "HandlerInvalid", "one argument"
    ),
    handling(
        "a handler that returns",
        "async def handle(message): return True",
        "HandlerInvalid",
        "message.retry()",
    ),
    handling(
        "a called handler",
        "def called(message): return 1\nhandle = called(None)\n",
        "SettingsError",
        "a handler must be an async function",
    ),
    in_trio(
        "a message is acked twice",
        "async with PullConsumer(namesrv, group='twice', consume_from='first') as consumer:\n"
        "    await consumer.assign(await consumer.queues('Orders'))\n"
        "    message = (await consumer.poll())[0]\n"
        "    await message.ack()\n"
        "    await message.ack()",
        "AlreadySettled",
        "settled",
    ),
    in_trio(
        "a queue that was not assigned",
        "async with PullConsumer(namesrv, group='g') as consumer:\n"
        "    await consumer.seek(MessageQueue('Orders', 'broker-a', 0), 0)",
        "QueueNotAssigned",
        "assign",
    ),
    # Settings
    setting(
        "a time as text", "ProducerSettings(send_timeout='3')", "send_timeout must be a number"
    ),
    setting("a negative time", "ProducerSettings(send_timeout=-1)", "greater than 0, not -1"),
    setting("milliseconds' name", "ClientSettings(shutdown_timeout=-1)", "shutdown_timeout"),
    setting(
        "settings as a dict",
        "Producer(namesrv, group='g', settings={'retries': 1})",
        "ProducerSettings(…)",
    ),
    setting(
        "the consumer's settings",
        "Producer(namesrv, group='g', settings=ConsumerSettings())",
        "ProducerSettings(…)",
    ),
    setting("a number of retries", "ProducerSettings(retries=1.5)", "retries", "whole number"),
    setting("an unknown compression", "ProducerSettings(compression='gzip')", "gzip", "zlib"),
    plain(
        "Java's name of a setting",
        "ProducerSettings(sendMsgTimeout=3)",
        "TypeError",
        "sendMsgTimeout",
    ),
    plain(
        "a wrong timeout",
        "with sync.Producer(namesrv, group='g') as producer:\n"
        "    producer.send('Orders', b'x', timeout='5')",
        "SettingsError",
        "timeout must be a number of seconds",
    ),
    plain("a wrong name", "triomq.Prodcer", "AttributeError", "Prodcer"),
]


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    """What the programs see: the package's names, and addresses."""
    with server_in_thread(settings=SERVER) as cluster, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with sync.Admin(cluster.namesrv_address) as admin:
            admin.create_topic("Orders")
        patient = triomq.ProducerSettings(send_timeout=30)
        with sync.Producer(cluster.namesrv_address, group="first", settings=patient) as producer:
            producer.send("Orders", b"first")
        quick = triomq.ClientSettings(route_timeout=0.3)
        yield {name: getattr(triomq, name) for name in triomq.__all__} | {
            "namesrv": cluster.namesrv_address,
            "nobody": f"127.0.0.1:{free.getsockname()[1]}",
            "broker": cluster.brokers[0].address,
            "IMPATIENT": triomq.ProducerSettings(client=quick),
            "triomq": triomq,
            "sync": sync,
            "aio": triomq.aio,
            "trio": trio,
            "asyncio": asyncio,
            "datetime": __import__("datetime"),
        }


def sole(error: BaseException) -> BaseException:
    """Return the error in groups of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def own_lines(error: BaseException) -> list[str]:
    """Return the lines of the traceback, causes included, that show code of this package.

    Of a call that stands in several lines Python 3.13 shows several; the first counts.
    """
    lines: list[str] = []
    own, shown = False, 0
    for line in "".join(traceback.format_exception(error)).splitlines():
        text = line.lstrip(" |+-")
        if text.startswith('File "'):
            own, shown = text.startswith(tuple(f'File "{folder}/' for folder in OWN)), 0
        elif not line.lstrip(" |").startswith(" ") and not re.match(r"[ |]*    ", line):
            own = False
        if own and shown < 2:
            lines.append(line)
            shown += 1
    return lines


@pytest.mark.parametrize("wrong", PROGRAMS, ids=lambda wrong: wrong.title)
def test_the_error_says_what_to_do(wrong: Wrong, names: dict[str, Any]) -> None:
    code = compile(wrong.source, "beginner.py", "exec")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(BaseException) as caught:
            exec(code, dict(names))
    error = sole(caught.value)
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    assert type(error).__name__ == wrong.error, text
    assert [part for part in wrong.says if part not in text] == [], text
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # type: ignore[union-attr]
    assert len(own_lines(caught.value)) <= OWN_LINES_MAX, "\n".join(own_lines(caught.value))
    assert "\n" not in str(error)


def test_a_forgotten_await_is_named(names: dict[str, Any]) -> None:
    program = (
        "async with Producer(namesrv, group='g') as producer:\n    producer.send('Orders', b'x')"
    )
    code = compile(in_trio("", program, "").source, "beginner.py", "exec")
    with pytest.warns(RuntimeWarning, match=r"coroutine '.*send' was never awaited"):
        exec(code, dict(names))


def test_there_are_sixty() -> None:
    assert len({wrong.title for wrong in PROGRAMS}) == len(PROGRAMS) >= 60
