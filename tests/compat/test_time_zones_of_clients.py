"""Official clients of RocketMQ 5 sign their local time: those of every time zone are served."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from access_callers import ROOT, SETTINGS
from grpc_broker import grpc_broker
from grpc_peers import need_grpc_clients
from processes import PEERS

from triomq.remoting.protocol.signing import Credentials

pytestmark = [pytest.mark.compat, pytest.mark.timeout(120)]

CLIENT = str(PEERS / "grpc-python-5.1.2" / "venv" / "bin" / "python")
PROGRAM = """
import sys
from rocketmq import ClientConfiguration, Credentials, Message, Producer

endpoint, user, password = sys.argv[1:]
producer = Producer(ClientConfiguration(endpoint, Credentials(user, password)), ["TA"])
producer.startup()
message = Message()
message.topic, message.body = "TA", b"x"
print("sent", producer.send(message).message_id)
producer.shutdown()
"""


@pytest.mark.parametrize(
    ("zone", "window", "served"),
    [
        ("Pacific/Kiritimati", 54_000, True),  # 14 hours before UTC
        ("Pacific/Pago_Pago", 54_000, True),  # 11 hours behind it
        ("UTC", 300, True),
        ("Pacific/Kiritimati", 300, False),
    ],
)
async def test_a_client_is_served_if_its_local_time_is_in_the_window(
    tmp_path: Path, zone: str, window: int, served: bool
) -> None:
    need_grpc_clients()
    root = Credentials(access_key=ROOT[0], secret_key=ROOT[1])
    settings = {key: value for key, value in SETTINGS.items() if key != "grpcServerPort"}
    settings["grpcSignatureWindowSeconds"] = window
    async with grpc_broker(tmp_path, credentials=root, **settings) as broker:
        await broker.peer.create_topic("TA", 1)
        with trio.fail_after(60):
            done = await trio.run_process(
                [CLIENT, "-c", PROGRAM, f"127.0.0.1:{broker.port}", *ROOT],
                env={**os.environ, "TZ": zone, "HOME": str(tmp_path)},
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
    assert (b"sent" in done.stdout) is served, done.stderr.decode()[-2000:]
