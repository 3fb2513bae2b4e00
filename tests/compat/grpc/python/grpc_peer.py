"""The official Python client of RocketMQ 5: ``grpc_peer.py ENDPOINT tls|plain SCENARIO,… TOPIC
GROUP COUNT``; what the scenarios do is in tests/support/grpc_scenarios.py. It runs in an
environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

ENDPOINT, SECURITY, SCENARIOS, TOPIC, GROUP, COUNT = sys.argv[1:]
TLS, count = SECURITY == "tls", int(COUNT)
AWAIT = 5
CREDENTIALS = Credentials(
    *(os.environ.get(f"PEER_{name}", "") for name in ("ACCESS_KEY", "SECRET_KEY"))
)
OUTPUT = threading.Lock()


def configuration() -> ClientConfiguration:
    return ClientConfiguration(ENDPOINT, CREDENTIALS, request_timeout=10)


def number_of(message: Message) -> int:
    return int(message.body.decode().rpartition("-")[2])


class Listener(MessageListener):
    """Lets messages that ``fails`` names fail at their first delivery, or ``always``;
    ``complete`` when ``expected`` deliveries have come.
    """

    def __init__(
        self, scenario: Scenario, expected: int, fails: Callable[[Message], bool], *, always: bool
    ) -> None:
        self._scenario, self._expected, self._fails = scenario, expected, fails
        self._always = always
        self._lock, self.complete = threading.Lock(), threading.Event()
        self._seen: set[bytes] = set()

    def consume(self, message: Message) -> ConsumeResult:
        self._scenario.say_got(message)
        with self._lock:
            self._expected -= 1
            if self._expected == 0:
                self.complete.set()
            # In an orderly group the client counts no attempts.
            fails = self._fails(message) and (self._always or message.body not in self._seen)
            self._seen.add(message.body)
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


class Checker(TransactionChecker):
    """Decides by the number in the body, until all in ``open`` were asked for."""

    def __init__(self, scenario: Scenario, open_: set[str]) -> None:
        self._scenario, self._open = scenario, open_
        self.complete = threading.Event()

    def check(self, message: Message) -> TransactionResolution:
        body, even = message.body.decode(), number_of(message) % 2 == 0
        commits = body.startswith("commit") or (body.startswith("unknown") and even)
        resolution = "COMMIT" if commits else "ROLLBACK"
        self._scenario.say("checked", id=message.message_id, body=body, resolution=resolution)
        self._open.discard(body)
        if not self._open:
            self.complete.set()
        return TransactionResolution.Value(resolution)


class Scenario:
    """One scenario, in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.name, self.topic, self.group = name, f"{TOPIC}-{name}", f"{GROUP}-{name}"
        self._done = False

    def say(self, event: str, **fields: object) -> None:
        at = int(time.time() * 1000)
        with OUTPUT:
            print(
                json.dumps({"scenario": self.name, "event": event, "at": at, **fields}), flush=True
            )

    def say_done(self) -> None:
        if not self._done:
            self.say("done")
        self._done = True

    def say_got(self, message: Message) -> None:
        self.say(
            "got",
            id=message.message_id,
            body=message.body.decode(),
            attempt=message.delivery_attempt,
            topic=message.topic,
            tag=message.tag,
            keys=sorted(message.keys),
            group=message.message_group,
            properties=dict(message.properties),
        )

    def run(self) -> None:
        try:
            {
                "send-normal": self.send,
                "send-fifo": self.send,
                "send-delay": self.send,
                "recall": self.send,
                "send-refused": self.send_refused,
                "send-transaction": self.send_transactions,
                "simple-receive-ack": self.receive_and_ack,
                "simple-change-invisible": self.change_invisible,
                "filter-tag": self.filter,
                "filter-sql": self.filter,
                "push-consume": self.push,
                "push-fifo": self.push,
                "push-dead": self.push,
                "push-fifo-dead": self.push,
                "simple-fifo": self.receive_in_order,
            }[self.name]()
            self.say_done()
        except Exception:
            self.say("failed", error=traceback.format_exc())

    def message(self, body: str) -> Message:
        message = Message()
        message.topic, message.body = self.topic, body.encode()
        return message

    def producer(self, checker: Checker | None = None) -> Producer:
        producer = Producer(configuration(), [self.topic], checker, tls_enable=TLS)
        producer.startup()
        return producer

    def send(self) -> None:
        producer = self.producer()
        for number in range(count):
            body, due = f"{self.name}-{number}", 0
            message = self.message(body)
            if self.name == "send-normal":
                message.tag = "TagB" if number % 2 else "TagA"
                message.keys = f"key-{number}"
                message.keys = f"other-{number}"  # its setter adds
                message.add_property("number", str(number))
                message.add_property("text", "Grüße 你好")
            elif self.name == "send-fifo":
                message.message_group = f"group-{number % 2}"
            else:
                due = int(time.time() + (8 if self.name == "recall" else 3)) * 1000
                message.delivery_timestamp = due // 1000  # it takes seconds
            receipt = producer.send(message)
            self.say("sent", id=receipt.message_id, body=body, due=due)
            if self.name == "recall" and number % 2:
                recalled = producer.recall_message(self.topic, receipt.recall_handle)
                self.say("recalled", id=recalled, body=body)
        producer.shutdown()

    def send_refused(self) -> None:
        producer = self.producer()
        message = self.message("delayed")
        message.delivery_timestamp = int(time.time()) + 3
        try:
            producer.send(message)
            self.say("sent", body="delayed")
        except Exception as error:
            self.say("refused", error=str(error))
        self.say("sent", id=producer.send(self.message("plain")).message_id, body="plain")
        producer.shutdown()

    def send_transactions(self) -> None:
        checker = Checker(self, {f"unknown-{number}" for number in range(2, count, 3)})
        producer = self.producer(checker)
        for number in range(count):
            how = ("commit", "rollback", "unknown")[number % 3]
            message = self.message(f"{how}-{number}")
            message.keys = f"key-{number}"
            transaction = producer.begin_transaction()
            receipt = producer.send(message, transaction)
            self.say("sent", id=receipt.message_id, body=message.body.decode())
            if how == "commit":
                transaction.commit()
            elif how == "rollback":
                transaction.rollback()
        assert checker.complete.wait(60), "not asked about all"
        self.say_done()
        time.sleep(20)  # the last answer is on its way, and the broker may ask again
        producer.shutdown()

    def simple_consumer(self, expression: FilterExpression | None = None) -> SimpleConsumer:
        subscription = {self.topic: expression or FilterExpression()}
        consumer = SimpleConsumer(
            configuration(), self.group, subscription, await_duration=AWAIT, tls_enable=TLS
        )
        consumer.startup()
        return consumer

    def receive(
        self, consumer: SimpleConsumer, invisible_seconds: int, most: int = 10
    ) -> list[Message]:
        """Receive; an error is printed and counts as no messages, as an application would do."""
        self.say("asked")
        try:
            return consumer.receive(most, invisible_seconds)
        except Exception as error:
            self.say("again", error=str(error))
            time.sleep(0.2)
            return []

    def receive_and_ack(self) -> None:
        consumer, got = self.simple_consumer(), 0
        while got < count + 1:
            for message in self.receive(consumer, 30):
                got += 1
                self.say_got(message)
                if number_of(message) or message.delivery_attempt > 1:
                    consumer.ack(message)
        for message in self.receive(consumer, 30):
            self.say_got(message)
        consumer.shutdown()

    def change_invisible(self) -> None:
        consumer, got = self.simple_consumer(), 0
        while got < 2 * count:
            for message in self.receive(consumer, 300):
                got += 1
                self.say_got(message)
                if message.delivery_attempt == 1:
                    consumer.change_invisible_duration(message, 2)
                else:
                    consumer.ack(message)
        consumer.shutdown()

    def filter(self) -> None:
        if self.name == "filter-tag":
            expression, expected = FilterExpression("TagA || TagB"), count - count // 3
        else:
            text = "number >= 3 AND color = 'red'"
            expression, expected = FilterExpression(text, FilterType.SQL), (count - 3) // 2
        consumer, got = self.simple_consumer(expression), 0
        while got < expected:
            for message in self.receive(consumer, 60):
                got += 1
                self.say_got(message)
                consumer.ack(message)
        for message in self.receive(consumer, 60):
            self.say_got(message)
        consumer.shutdown()

    def receive_in_order(self) -> None:
        consumer, got, later = self.simple_consumer(), 0, 0
        held: Message | None = None
        while got < count or held is not None:
            for message in self.receive(consumer, 60, 1):
                self.say_got(message)
                if got == 0:
                    held = message
                else:
                    self.acknowledge(consumer, message)
                got += 1
            if held is not None:
                later += 1
                if later == 4:
                    self.acknowledge(consumer, held)
                    held = None
        consumer.shutdown()

    def acknowledge(self, consumer: SimpleConsumer, message: Message) -> None:
        self.say("acked", body=message.body.decode())  # before: what comes next comes later
        consumer.ack(message)

    def push(self) -> None:
        dies, many = self.name.endswith("-dead"), self.name == "push-consume"
        listener = Listener(
            self,
            count + (count // 2 if many else 1),
            lambda message: number_of(message) % 2 == 1 if many else number_of(message) == 2,
            always=dies,
        )
        subscription = {self.topic: FilterExpression()}
        consumer = PushConsumer(configuration(), self.group, listener, subscription, tls_enable=TLS)
        consumer.startup()
        assert listener.complete.wait(90), "deliveries are missing"
        time.sleep(2)  # what comes too much
        self.say_done()  # to close takes as long as a poll
        time.sleep(20 if dies else 0)  # the server makes the dead letter when it is asked for more
        consumer.shutdown()


threads = [threading.Thread(target=Scenario(name).run) for name in SCENARIOS.split(",")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
os._exit(0)  # threads of the client may go on
