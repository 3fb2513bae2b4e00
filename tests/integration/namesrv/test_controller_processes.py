"""Three controllers in processes of their own: the leader is killed, and stopped, under load."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
from controller_processes import IDS, ControllerProcesses, controller_processes

from triomq.remoting.protocol.bodies.controller import SyncStateData
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.controller import (
    ApplyBrokerIdHeader,
    ElectMasterHeader,
    ElectMasterResponseHeader,
)
from triomq.remoting.protocol.headers.registration import BrokerHeartbeatHeader

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(300)]


class Load(threading.Thread):
    """Groups get ids and masters, one request after the other, at any controller that answers."""

    def __init__(self, controllers: ControllerProcesses) -> None:
        super().__init__(name="load")
        self.controllers = controllers
        self.ends = threading.Event()
        self.ids: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self.answers = 0
        self.found: list[str] = []

    def run(self) -> None:
        number = 0
        while not self.ends.is_set():
            number += 1
            name = f"g{number % 20}"
            wanted = self.ids.get(name, 0) + 1
            self.give_id(name, wanted)
            self.elect(name, wanted)

    def try_anywhere(self, command):
        for one in IDS:
            if one in self.controllers.running:
                answer = self.controllers.try_at(one, command, seconds=1)
                if answer is not None and answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
                    return answer
        time.sleep(0.05)
        return None

    def give_id(self, name: str, wanted: int) -> None:
        header = ApplyBrokerIdHeader("C", name, wanted, f"x:{name}:{wanted};1")
        answer = self.try_anywhere(request(Code.CONTROLLER_APPLY_BROKER_ID, header))
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.ids[name] = wanted
            self.answers += 1
        elif answer is not None and "Fail to apply" in (answer.remark or ""):
            self.found.append(f"{name} {wanted}: {answer.remark}")

    def elect(self, name: str, broker_id: int) -> None:
        if self.ids.get(name) != broker_id:
            return
        beat = BrokerHeartbeatHeader("C", f"x:{name}", name, broker_id)
        self.try_anywhere(request(Code.BROKER_HEARTBEAT, beat))
        header = ElectMasterHeader("C", name, broker_id, broker_id == 1)
        answer = self.try_anywhere(request(Code.CONTROLLER_ELECT_MASTER, header))
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            epoch = answer.header(ElectMasterResponseHeader).master_epoch or 0
            if epoch < self.epochs.get(name, 0):
                self.found.append(f"{name}: epoch {epoch} after {self.epochs[name]}")
            self.epochs[name] = epoch
            self.answers += 1


def test_what_was_answered_survives_killed_and_stopped_leaders(tmp_path: Path) -> None:
    with controller_processes(tmp_path) as controllers:
        controllers.leader()
        load = Load(controllers)
        load.start()

        def more() -> None:
            before, deadline = load.answers, time.monotonic() + 60
            while load.answers < before + 30:
                assert time.monotonic() < deadline
                time.sleep(0.05)

        try:
            more()
            for _ in range(3):
                killed = controllers.leader()
                controllers.kill(killed)
                controllers.leader()
                more()
                controllers.start(killed)
            stopped = controllers.leader()
            controllers.signal(stopped, signal.SIGSTOP)
            controllers.leader(stopped)
            more()
            controllers.signal(stopped, signal.SIGCONT)
            more()
        finally:
            load.ends.set()
            load.join()
        assert load.found == []
        names = ",".join(f'"{name}"' for name in load.ids)
        asked = request(Code.CONTROLLER_GET_SYNC_STATE_DATA, None, f"[{names}]".encode())
        table = SyncStateData.decode(controllers.ask(asked).body).replicas_info_table
        for name, newest in load.ids.items():
            replicas = table[name].in_sync_replicas + table[name].not_in_sync_replicas
            assert {one.broker_id for one in replicas} >= set(range(1, newest + 1))
            assert (table[name].master_epoch or 0) >= load.epochs.get(name, 0)
