"""Send and receive without ``async``: for scripts and threads.

NAMESRV_ADDR=127.0.0.1:9876 python examples/without_async.py
"""

import sys

from triomq.sync import Message, Producer, PushConsumer


def main(namesrv: str | None) -> None:
    """Send ten messages and read them back."""
    with Producer(namesrv, group="jobs") as producer:
        for number in range(5):
            producer.send("Jobs", b"job %d" % number, timeout=5)
        jobs = (Message(topic="Jobs", body=b"job %d" % number) for number in range(5, 10))
        for receipt in producer.send_many(jobs):
            print("sent", receipt.message_id)

    with PushConsumer(
        namesrv, group="workers", subscriptions="Jobs", consume_from="first"
    ) as consumer:
        for number, message in enumerate(consumer, 1):
            with message:
                print("got", message.body.decode())
            if number == 10:
                break


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
