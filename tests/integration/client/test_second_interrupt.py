"""A second Ctrl-C ends a program whose handler does not end, also without ``triomq.run``."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from threaded_cluster import cluster_in_a_thread

from triomq import sync

SETTINGS = "ConsumerSettings(client=ClientSettings(shutdown_timeout=600))"
OPTIONS = f'group="g", subscriptions="T", consume_from="first", settings={SETTINGS}, handler=handle'
PROGRAMS = {
    "trio": f"""
import sys, trio
from triomq import ClientSettings, ConsumerSettings, PushConsumer
async def handle(message):
    begun.set()
    await trio.sleep_forever()
async def main():
    try:
        async with PushConsumer(sys.argv[1], {OPTIONS}):
            await begun.wait()
            print("begun", flush=True)
            await trio.sleep_forever()
    finally:
        print("ended", flush=True)
begun = trio.Event()
trio.run(main)
""",
    "sync": f"""
import sys, threading
from triomq.sync import ClientSettings, ConsumerSettings, PushConsumer
def handle(message):
    begun.set()
    threading.Event().wait()
begun = threading.Event()
with PushConsumer(sys.argv[1], {OPTIONS}):
    begun.wait()
    print("begun", flush=True)
    threading.Event().wait()
""",
}


@pytest.mark.parametrize("interface", PROGRAMS)
def test_a_second_interrupt_ends_the_program(interface: str) -> None:
    with cluster_in_a_thread(topic="T", queues=1) as address:
        with sync.Producer(address, group="p") as producer:
            producer.send("T", b"x")
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAMS[interface], address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        interrupts = threading.Event()

        def interrupt() -> None:  # the first one may come before the program waits
            while not interrupts.wait(0.5):
                process.send_signal(signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            _, errors = process.communicate(timeout=30)
        finally:
            interrupts.set()
            thread.join()
            process.kill()
        assert process.returncode == -signal.SIGINT, errors
