"""A cluster in network namespaces under load while servers are killed, stopped, cut off, filled and
lose power: what was acknowledged stays, and logs stay equal.

``make fault-test`` does more schedules, and stops processes for longer.
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
from fault_cluster import (
    BROKERS,
    SECONDS_MAX,
    SEGMENT_BYTES,
    EndedByItself,
    FaultCluster,
    Mode,
    log_part,
)
from fault_controllers import in_a_row, run_controlled
from fault_matrix import measure_one
from fault_network import PREFIX, Network, command, why_not
from fault_process import RULES, start
from fault_schedules import LOAD_LEAST, SERVERS, Schedule, ScheduleRun, check_logs, read_log
from store_ledger import parse

SCHEDULES = 8
"""So many have every kind of fault; the next ones begin the deck anew."""
DRAIN_SECONDS = 6
"""Limit of the time in which every message that will come has come."""


@pytest.fixture(scope="module")
def _network() -> None:
    """Skip, with the reason, if no network of namespaces can be made."""
    missing = why_not()
    if missing:
        pytest.skip(missing)


def reached(network: Network, source: str, target: str) -> bool:
    """Return whether the other host answers (it refuses, since nothing listens there)."""
    program = (
        "import socket; s = socket.socket(); s.settimeout(2);"
        f" print(s.connect_ex(({network.address(target)!r}, 9)))"
    )
    return (
        int(command(*network.inside(source), sys.executable, "-c", program)) == errno.ECONNREFUSED
    )


@pytest.mark.usefixtures("_network")
def test_a_network_is_cut_joined_and_gone_afterwards() -> None:
    command("ip", "netns", "add", f"{PREFIX}{2**22 + 1}-hub")  # of a process that cannot be

    def fail() -> None:
        with network:
            assert f"{PREFIX}{2**22 + 1}" not in command("ip", "netns", "list"), (
                "what a killed run left behind"
            )
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
    clock, times = tmp_path / "clock", tmp_path / "times"
    times.touch()
    jumps: list[int] = []
    with Network(("one",)) as network:
        process = start(network.name("one"), tmp_path / "log", fault_clock.note_clock, clock, times)
        try:
            for seconds in (0, 200_000, -3600, 0):
                fault_clock.set_clock(clock, seconds)
                jumps.append(round(time.time() - time.monotonic()) + seconds)
                deadline = time.monotonic() + 30
                while len(times.read_text().splitlines()) < len(jumps):
                    assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                    time.sleep(0.01)
        finally:
            process.kill()
            process.join()
    assert [int(line) for line in times.read_text().splitlines()] == [
        pytest.approx(jump, abs=2) for jump in jumps
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("_network", "_clocks")
def test_a_broker_whose_clock_jumps_stores_messages_of_that_time(tmp_path: Path) -> None:
    with FaultCluster(tmp_path, consumers=False) as cluster:
        cluster.wait_acknowledged(LOAD_LEAST, "at first")
        assert max(stored_at(cluster)) < time.time() + 60
        cluster.set_clock("master", 200_000.0)
        cluster.wait(
            "a message of the day after tomorrow",
            lambda: max(stored_at(cluster)) > time.time() + 190_000,
        )
        cluster.wait_acknowledged(LOAD_LEAST, "then")


def stored_at(cluster: FaultCluster) -> list[float]:
    found = read_log(cluster.store("master"))
    part = log_part(cluster.store("master"))  # afterwards: the log grows meanwhile
    return [
        parse(part.data[one.log_offset :], one.log_offset).store_timestamp / 1000 for one in found
    ]


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
        assert re.fullmatch(
            r"mqbroker: \S+/slave/disk/store\S*: no space left; free some space on its file system,"
            r" then start the broker again",
            last,
        )
        assert not any("Traceback" in line for line in cluster.log_lines("slave"))
        cluster.make_room("slave")
        cluster.wait_acknowledged(LOAD_LEAST, "with room")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.feature("196a")
@pytest.mark.usefixtures("_network")
def test_eight_schedules_of_faults_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
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
    assert {kind.split()[0] for kind in figures.faults} >= {"kill", "cut", "slow", "full", "stop"}
    assert figures.promotions > 0
    assert figures.delayed > 0
    assert figures.given_back > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_network")
def test_eight_schedules_of_faults_lose_nothing_under_controllers(tmp_path: Path) -> None:
    run = run_controlled(tmp_path, in_a_row(3, SCHEDULES))
    assert run.complaints == []
    figures = run.figures
    assert figures.lost == 0
    assert figures.acknowledged > LOAD_LEAST * 3
    assert sum(figures.faults.values()) > SCHEDULES // 2  # a busy machine sends too little for more
    assert run.masters > 3


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.feature("58b", "59a", "59b", "196b")
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
def test_what_a_mode_survives(
    tmp_path: Path, mode: Mode, loss: str, least: float, most: float
) -> None:
    """The places of ``make fault-matrix`` that do not depend on chance; with the master's disk only
    what no slave had yet is lost.
    """
    promise = mode.replication == "SYNC_MASTER"
    cell = measure_one(tmp_path / "cluster", mode, loss, "0", delays=promise)
    assert cell.acknowledged >= LOAD_LEAST
    assert bool(cell.delayed) is promise
    assert cell.delayed_lost == 0
    assert least <= cell.lost / cell.acknowledged <= most, cell


def flooded(folder: Path, rules: dict[str, str], *, seconds: float = SECONDS_MAX) -> list[str]:
    """Let idle connections hold all that a master with few files lets them, until its log has gone
    on to the next file; return the lines that it has logged.
    """
    with FaultCluster(
        folder, rules=rules, few_files=("master",), consumers=False, pause_seconds=0.0
    ) as cluster:
        cluster.wait_acknowledged(LOAD_LEAST, "at first")
        cluster.flood("master")
        end = log_part(cluster.store("master")).end + SEGMENT_BYTES
        cluster.wait(
            "the log has grown by a file",
            lambda: log_part(cluster.store("master")).end > end,
            seconds,
        )
        return cluster.log_lines("master")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("_network")
def test_idle_connections_leave_files_for_the_store(tmp_path: Path) -> None:
    lines = flooded(tmp_path / "kept", {})
    assert any("turning away a connection" in line for line in lines), (
        "there were too few connections to show anything"
    )
    assert not any("Too many open files" in line for line in lines)
    # The broken one ends, or waits for files that it does not get.
    with pytest.raises((EndedByItself, AssertionError), match=r"Too many open files|not yet"):
        flooded(tmp_path / "broken", {"master": "connections-take-all-files"}, seconds=40)
    assert "Too many open files" in (tmp_path / "broken" / "master.log").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("_network")
def test_progress_beyond_the_log_of_a_new_master_is_noticed(tmp_path: Path) -> None:
    """A slave that takes over what its log does not support: an acknowledged delayed message is
    lost, a group skips messages.
    """
    rules = {
        "slave": (
            "a_slave_takes_delay_progress_beyond_its_log"
            " a_slave_takes_consumer_offsets_beyond_its_log"
        )
    }
    schedule = Schedule(0, 0, (), 0.0, "kill", 0.0, SERVERS, 1, delays=True, promotes=True)
    wanted = [
        re.compile(r"the delayed message \S+ was acknowledged, and never came"),
        re.compile("concurrent never got"),
    ]
    complaints: list[str] = []

    def missing() -> list[str]:
        return [sentence.pattern for sentence in wanted if not any(map(sentence.match, complaints))]

    for number in range(4):  # one run may end before a delayed message was due on the lost log
        folder = tmp_path / str(number)
        folder.mkdir()
        with FaultCluster(folder, rules=rules, delays=True, drain_seconds=DRAIN_SECONDS) as cluster:
            complaints += ScheduleRun(cluster, schedule).run()
        if not missing():
            break
    assert missing() == [], complaints


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_network")
@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_noticed(tmp_path: Path, rule: str) -> None:
    """The same cluster, the same final fault, the same check of the stores."""
    broken = {
        "acknowledge-without-slave": ("master",),
        "acknowledge-before-fsync": BROKERS,
        "slave-acknowledges-before-fsync": ("slave",),
    }[rule]
    schedule = Schedule(0, 0, (), 0.01, "power", 0.2, SERVERS, 1)
    with FaultCluster(
        tmp_path, rules=dict.fromkeys(broken, rule), sync_seconds=schedule.sync_seconds
    ) as cluster:
        run = ScheduleRun(cluster, schedule)
        cluster.wait_acknowledged(LOAD_LEAST, "before")
        if rule == "acknowledge-without-slave":
            cluster.network.cut("master", "slave")
        else:
            cluster.controls("slave").set(sync_seconds=0.5)
        run.strike("kill" if rule == "acknowledge-without-slave" else "power", 0.5)
        complaints = check_logs(cluster)
    assert any(
        complaint.startswith("slave, as found on the disk: acknowledged and lost")
        for complaint in complaints
    ), complaints
