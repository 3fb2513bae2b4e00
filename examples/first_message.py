"""Send one message and read it: the first five minutes.

mqlocal &
python examples/first_message.py
"""

from triomq import sync

with sync.Producer("127.0.0.1:9876", group="shop") as producer:
    print(producer.send("Orders", b"one coffee"))

with sync.PullConsumer("127.0.0.1:9876", group="bar", consume_from="first") as consumer:
    consumer.assign(consumer.queues("Orders"))
    for message in consumer.poll(timeout=10):
        print(message.body.decode())
