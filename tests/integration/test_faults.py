"""A cluster in network namespaces under load while servers are killed, stopped, cut off, filled and lose power: what was acknowledged stays, and logs stay equal.

`make fault-test` does more schedules, and stops processes for longer.
"""

from __future__ import annotations

import errno
import re
import shutil
import sys
import time
from pathlib import Path

import fault_clock
import pytest
from fault_campaign import Campaign
from fault_cluster import BROKERS, FaultCluster, Mode, log_part
from fault_matrix import measure_one
from fault_network import PREFIX, Network, command, why_not
from fault_process import RULES, start
from fault_schedules import LOAD_LEAST, SERVERS, Schedule, ScheduleRun, look_at_logs, read_log
from store_ledger import parse

SCHEDULES = 10


@pytest.fixture(scope="module")
def _network() -> None:
    """Skips, and says why, where no network of namespaces can be made."""
    missing = why_not()
    if missing:
        pytest.skip(missing)


def reached(network: Network, source: str, target: str) -> bool:
    """Whether the other host answers (nothing listens there, so it refuses)."""
    program = f"import socket; s = socket.socket(); s.settimeout(2); print(s.connect_ex(({network.address(target)!r}, 9)))"
    return int(command(*network.inside(source), sys.executable, "-c", program)) == errno.ECONNREFUSED


@pytest.mark.usefixtures("_network")
def test_a_network_is_cut_joined_and_gone_afterwards() -> None:
    command("ip", "netns", "add", f"{PREFIX}{2**22 + 1}-hub")  # of a process that cannot be

    def fail() -> None:
        with network:
            assert f"{PREFIX}{2**22 + 1}" not in command("ip", "netns", "list"), "what a killed run left behind"
            assert reached(network, "one", "two")
            network.cut("two", "one")
            assert not reached(network, "one", "two")
            network.cut("one", "two")
            network.slow("one", 1000)
            assert "tbf" in command("tc", "-n", network.name("one"), "qdisc", "show")
            network.heal()
            assert reached(network, "two", "one")
            assert "tbf" not in command("tc", "-n", network.name("one"), "qdisc", "show")
            raise RuntimeError("in the middle")

    network = Network(("one", "two"))
    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert network.tag not in command("ip", "netns", "list")


@pytest.fixture
def _clocks() -> None:
    missing = fault_clock.why_not()
    if missing:
        pytest.skip(missing)


@pytest.mark.usefixtures("_network", "_clocks")
def test_a_clock_jumps_there_and_back_while_its_process_runs(tmp_path: Path) -> None:
    clock, told = tmp_path / "clock", tmp_path / "told"
    told.touch()
    jumps: list[int] = []
    with Network(("one",)) as network:
        process = start(network.name("one"), tmp_path / "log", fault_clock.tell_clock, clock, told)
        try:
            for seconds in (0, 200_000, -3600, 0):
                fault_clock.set_clock(clock, seconds)
                jumps.append(round(time.time() - time.monotonic()) + seconds)
                deadline = time.monotonic() + 30
                while len(told.read_text().splitlines()) < len(jumps):
                    assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                    time.sleep(0.01)
        finally:
            process.kill()
            process.join()
    assert [int(line) for line in told.read_text().splitlines()] == [pytest.approx(jump, abs=2) for jump in jumps]


@pytest.mark.slow
@pytest.mark.usefixtures("_network", "_clocks")
def test_a_broker_whose_clock_jumps_stores_messages_of_that_time(tmp_path: Path) -> None:
    with FaultCluster(tmp_path, consumers=False) as cluster:
        cluster.wait_acknowledged(LOAD_LEAST, "at first")
        assert max(stored_at(cluster)) < time.time() + 60
        cluster.set_clock("master", 200_000.0)
        cluster.wait("a message of the day after tomorrow", lambda: max(stored_at(cluster)) > time.time() + 190_000)
        cluster.wait_acknowledged(LOAD_LEAST, "then")


def stored_at(cluster: FaultCluster) -> list[float]:
    found = read_log(cluster.store("master"))
    part = log_part(cluster.store("master"))  # afterwards: the log grows meanwhile
    return [parse(part.data[one.log_offset :], one.log_offset).store_timestamp / 1000 for one in found]


@pytest.mark.slow
@pytest.mark.usefixtures("_network")
def test_a_broker_that_finds_no_room_at_its_start_says_so_in_one_line(tmp_path: Path) -> None:
    with FaultCluster(tmp_path, consumers=False, small=("slave",)) as cluster:
        cluster.wait_acknowledged(LOAD_LEAST, "at first")
        cluster.lose_power("slave", 0)
        shutil.rmtree(cluster.store("slave"))  # what is there already could be written to
        cluster.fill("slave")
        before = len(cluster.log_lines("slave"))
        cluster.start("slave")
        cluster.wait("the slave has found no room", lambda: "slave" in cluster.waiting_for_room)
        last = cluster.log_lines("slave")[before:][-1]
        assert re.fullmatch(r"mqbroker: \S+/slave/disk/store\S*: no space left; free some space on its file system, then start the broker again", last)
        assert not any("Traceback" in line for line in cluster.log_lines("slave"))
        cluster.make_room("slave")
        cluster.wait_acknowledged(LOAD_LEAST, "with room")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.feature(12, 58, 64, 196)
@pytest.mark.usefixtures("_network")
def test_ten_schedules_of_faults_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, 1)
    for _ in range(SCHEDULES // 2):
        campaign.run()
    campaign = Campaign(tmp_path, 1)  # the run was interrupted, and goes on
    while campaign.figures.schedules < SCHEDULES:
        campaign.run()
    figures = campaign.figures
    assert (figures.schedules, figures.lost) == (SCHEDULES, 0)
    assert figures.acknowledged > SCHEDULES * 90
    assert sum(figures.faults.values()) > SCHEDULES * 2
    assert len(figures.faults) > 15


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.feature(59)
@pytest.mark.usefixtures("_network")
@pytest.mark.parametrize(
    ("mode", "loss", "least", "most"),
    [
        (Mode("ASYNC_FLUSH", "ASYNC_MASTER"), "master killed", 0.0, 0.0),
        (Mode("SYNC_FLUSH", "ASYNC_MASTER"), "both lose power", 0.0, 0.0),
        (Mode("ASYNC_FLUSH", "ASYNC_MASTER"), "master's disk lost", 0.001, 0.9),
        (Mode("ASYNC_FLUSH", "SYNC_MASTER"), "master's disk lost", 0.0, 0.0),
    ],
    ids=["killed", "power", "disk lost, asynchronous", "disk lost, synchronous"],
)
def test_what_a_mode_survives(tmp_path: Path, mode: Mode, loss: str, least: float, most: float) -> None:
    """The places of `make fault-matrix` that do not depend on chance; with the master's disk only what no slave had yet is lost."""
    cell = measure_one(tmp_path / "cluster", mode, loss, "0")
    assert cell.acknowledged >= LOAD_LEAST
    assert least <= cell.lost / cell.acknowledged <= most, cell


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_network")
@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_noticed(tmp_path: Path, rule: str) -> None:
    """The same cluster, the same last blow, the same look at what lies there."""
    broken = {"acknowledge-without-slave": ("master",), "acknowledge-before-fsync": BROKERS, "slave-acknowledges-before-fsync": ("slave",)}[rule]
    schedule = Schedule(0, 0, (), 0.01, "power", 0.2, SERVERS, 1)
    with FaultCluster(tmp_path, rules=dict.fromkeys(broken, rule), sync_seconds=schedule.sync_seconds) as cluster:
        run = ScheduleRun(cluster, schedule)
        cluster.wait_acknowledged(LOAD_LEAST, "before")
        if rule == "acknowledge-without-slave":
            cluster.network.cut("master", "slave")
        else:
            cluster.controls("slave").set(sync_seconds=0.5)
        run.strike("kill" if rule == "acknowledge-without-slave" else "power", 0.5)
        complaints = look_at_logs(cluster)
    assert any(complaint.startswith("slave, as it lay there: acknowledged and lost") for complaint in complaints), complaints
