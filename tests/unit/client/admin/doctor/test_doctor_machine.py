"""mqadmin doctor's checks of the machine, with a folder of files as root for each case."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from triomq.client.admin.doctor.machine import MachineFacts
from triomq.client.admin.doctor.machine_checks import examine
from triomq.client.mqadmin.commands.doctor import result
from triomq.remoting.core.findings import Finding, Level

LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \nMax open files"
    "            {files:<20} 1048576              files     \n"
)
TCP = (
    "  sl  local_address rem_address   st tx_queue\n   0: 0100007F:2694 00000000:0000 {state}"
    " 00000000:00000000\n"
)
GOOD = {
    "proc/self/limits": LIMITS.format(files=65536),
    "proc/self/mountinfo": (
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
        "28 27 8:17 / /data rw,noatime shared:1 - xfs /dev/sdb1 rw,attr2\n"
        "29 27 8:33 / /database rw,noatime - ext3 /dev/sdc1 rw\n"
    ),
    "proc/sys/vm/swappiness": "10\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "proc/sys/vm/zone_reclaim_mode": "0\n",
    "proc/sys/vm/max_map_count": "65530\n",
    "proc/sys/vm/dirty_background_ratio": "10\n",
    "proc/sys/vm/dirty_ratio": "20\n",
    "proc/sys/net/core/somaxconn": "4096\n",
    "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "proc/sys/net/ipv4/ip_local_reserved_ports": "\n",
    "proc/net/tcp": TCP.format(state="0A"),
    "proc/net/tcp6": TCP.format(state="01"),
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/fs/cgroup/memory.max": "max\n",
    "sys/fs/cgroup/cpu.max": "max 100000\n",
    "sys/dev/block/8:17/../queue/scheduler": "[mq-deadline] none\n",
}
MODULES = {"zlib_ng": True, "lz4": True, "zstandard": False}


def machine(
    root: Path, changes: Mapping[str, str | None] | None = None, **more: object
) -> MachineFacts:
    """Return a good machine with some changed files; None removes a file."""
    for name, text in {**GOOD, **(changes or {})}.items():
        path = root / name
        if ".." in name:  # a partition's folder is in its disk's folder, and sysfs links to it
            disk = root / "sys/devices/disk/sdb"
            (disk / "sdb1").mkdir(parents=True, exist_ok=True)
            (disk / "queue").mkdir(exist_ok=True)
            link = root / "sys/dev/block/8:17"
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(disk / "sdb1")
            path = disk / "queue" / "scheduler"
        if text is None:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    settings: dict[str, object] = {
        "root": root,
        "folder": Path("/data/store"),
        "modules": lambda: MODULES,
        "disk_share": lambda path: 0.2,
        "clock_state": lambda: 0,
        "fsync_seconds": lambda path: [0.0005, 0.0006, 0.002],
        **more,
    }
    return MachineFacts(**settings)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def data_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for the machine of the files, on which ``/data`` exists."""
    exists = Path.exists
    monkeypatch.setattr(
        Path,
        "exists",
        lambda self, **more: str(self) in ("/data", "/data/store") or exists(self, **more),
    )


def levels(findings: list[Finding]) -> dict[str, Level]:
    return {finding.check: finding.level for finding in findings if finding.level is not Level.OK}


def test_a_good_machine_has_only_ok_findings(tmp_path: Path) -> None:
    findings = examine(machine(tmp_path), write=True)
    assert levels(findings) == {}
    found = {finding.check: finding.text for finding in findings}
    assert found["file system"] == "xfs at /data"
    assert found["I/O scheduler"] == "mq-deadline (sdb)"
    assert found["usual ports"] == "in use: 9876 (name server)"
    assert found["fsync"] == "median 0.600 ms, longest 2.0 ms"
    assert "pip install 'triomq[zstd]'" in found["zstandard"]


MOUNT = (
    "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n28 27 8:17 / /data rw,{options} - {kind}"
    " {device} rw,{more}\n"
)
CASES: dict[str, tuple[dict[str, str], str, Level]] = {
    "few files": ({"proc/self/limits": LIMITS.format(files=20000)}, "open files", Level.ADVICE),
    "very few files": (
        {"proc/self/limits": LIMITS.format(files=1024)},
        "open files",
        Level.PROBLEM,
    ),
    "swappiness": ({"proc/sys/vm/swappiness": "60"}, "vm.swappiness", Level.ADVICE),
    "overcommit": ({"proc/sys/vm/overcommit_memory": "2"}, "vm.overcommit_memory", Level.ADVICE),
    "zone reclaim": ({"proc/sys/vm/zone_reclaim_mode": "1"}, "vm.zone_reclaim_mode", Level.ADVICE),
    "maps": ({"proc/sys/vm/max_map_count": "1000"}, "vm.max_map_count", Level.ADVICE),
    "RocketMQ's own dirty ratios": (
        {"proc/sys/vm/dirty_background_ratio": "50"},
        "vm.dirty_background_ratio",
        Level.ADVICE,
    ),
    "dirty ratio": ({"proc/sys/vm/dirty_ratio": "80"}, "vm.dirty_ratio", Level.ADVICE),
    "huge pages": (
        {"sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never"},
        "transparent huge pages",
        Level.ADVICE,
    ),
    "control group, memory": (
        {"sys/fs/cgroup/memory.max": str(128 << 20)},
        "limit of the control group",
        Level.ADVICE,
    ),
    "control group, cores": (
        {"sys/fs/cgroup/cpu.max": "50000 100000"},
        "limit of the control group",
        Level.ADVICE,
    ),
    "governor": (
        {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave"},
        "frequency governor",
        Level.ADVICE,
    ),
    "scheduler": (
        {"sys/dev/block/8:17/../queue/scheduler": "none [bfq]"},
        "I/O scheduler",
        Level.ADVICE,
    ),
    "clock source": (
        {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet"},
        "clock source",
        Level.ADVICE,
    ),
    "backlog": ({"proc/sys/net/core/somaxconn": "128"}, "net.core.somaxconn", Level.ADVICE),
    "ephemeral ports": (
        {"proc/sys/net/ipv4/ip_local_port_range": "1024 65000"},
        "ephemeral ports",
        Level.ADVICE,
    ),
    "no barriers": (
        {
            "proc/self/mountinfo": MOUNT.format(
                options="noatime", kind="ext4", device="/dev/sdb1", more="barrier=0"
            )
        },
        "mount options",
        Level.PROBLEM,
    ),
    "access times": (
        {
            "proc/self/mountinfo": MOUNT.format(
                options="strictatime", kind="ext4", device="/dev/sdb1", more="x"
            )
        },
        "mount options",
        Level.ADVICE,
    ),
    "memory as disk": (
        {
            "proc/self/mountinfo": MOUNT.format(
                options="noatime", kind="tmpfs", device="tmpfs", more="x"
            )
        },
        "file system",
        Level.PROBLEM,
    ),
    "container layer": (
        {
            "proc/self/mountinfo": MOUNT.format(
                options="noatime", kind="overlay", device="overlay", more="x"
            )
        },
        "file system",
        Level.PROBLEM,
    ),
    "network disk": (
        {
            "proc/self/mountinfo": MOUNT.format(
                options="noatime", kind="nfs4", device="server:/x", more="x"
            )
        },
        "file system",
        Level.ADVICE,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_fault_is_found_with_its_reason_and_fix(case: str, tmp_path: Path) -> None:
    changes, check, level = CASES[case]
    findings = examine(machine(tmp_path, changes))
    assert levels(findings) == {check: level}
    (found,) = (finding for finding in findings if finding.level is level)
    assert found.why
    assert found.fix


@pytest.mark.parametrize(
    ("more", "check", "level"),
    [
        ({"disk_share": lambda path: 0.8}, "space", Level.ADVICE),
        ({"disk_share": lambda path: 0.95}, "space", Level.PROBLEM),
        ({"clock_state": lambda: 5}, "synchronisation", Level.ADVICE),
        ({"clock_state": lambda: None}, "synchronisation", Level.UNKNOWN),
        ({"modules": lambda: {**MODULES, "zlib_ng": False}}, "zlib-ng", Level.ADVICE),
        ({"fsync_seconds": lambda path: [0.02] * 3}, "fsync", Level.ADVICE),
        ({"fsync_seconds": lambda path: [0.000_001] * 3}, "fsync", Level.ADVICE),
    ],
)
def test_faults_that_no_file_has(
    more: dict[str, object], check: str, level: Level, tmp_path: Path
) -> None:
    assert levels(examine(machine(tmp_path, **more), write=True)) == {check: level}


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    def refuse(path: Path) -> list[float]:
        raise PermissionError(13, "Permission denied")

    found = next(
        finding
        for finding in examine(machine(tmp_path, fsync_seconds=refuse), write=True)
        if finding.check == "fsync"
    )
    assert (found.level, found.text) == (Level.PROBLEM, "/data/store: permission denied")


@pytest.mark.parametrize(
    ("written", "name"),
    [("/daten/größe", "/daten/größe"), ("/数据", "/数据"), ("/a\\040b\\134c", "/a b\\c")],
)
def test_mounts_whose_names_are_not_ascii_or_have_blanks(
    written: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: True)
    line = f"30 27 8:49 / {written} rw,noatime - xfs /dev/sdd1 rw\n"
    found = machine(
        tmp_path,
        {"proc/self/mountinfo": GOOD["proc/self/mountinfo"] + line},
        folder=Path(name) / "store",
    ).mount()
    assert found is not None
    assert (found.point, found.device) == (name, "8:49")


def test_a_mount_whose_name_is_not_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = machine(tmp_path)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    path = tmp_path / "proc/self/mountinfo"
    path.write_bytes(path.read_bytes() + b"30 27 8:49 / /\xff rw - xfs /dev/sdd1 rw\n")
    found = looked_at.mount()
    assert found is not None
    assert found.point == "/data"


def test_reserved_ports_are_safe(tmp_path: Path) -> None:
    changes = {
        "proc/sys/net/ipv4/ip_local_port_range": "1024 65000",
        "proc/sys/net/ipv4/ip_local_reserved_ports": "9876,10909-10912",
    }
    assert levels(examine(machine(tmp_path, changes))) == {}


def test_facts_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    """On another system, or in a container that hides the facts, nothing is guessed."""
    findings = examine(
        MachineFacts(
            root=tmp_path,
            folder=tmp_path,
            disk_share=lambda path: 0.1,
            clock_state=lambda: None,
            modules=lambda: MODULES,
        )
    )
    assert {finding.level for finding in findings} == {Level.OK, Level.UNKNOWN}
    assert len([finding for finding in findings if finding.level is Level.UNKNOWN]) >= 12


def test_the_process_whose_limits_are_checked(tmp_path: Path) -> None:
    changes = {"proc/4711/limits": LIMITS.format(files=1000)}
    assert levels(examine(machine(tmp_path, changes, pid="4711"))) == {"open files": Level.PROBLEM}
    changes = {"proc/4711/limits": LIMITS.format(files="unlimited")}
    assert levels(examine(machine(tmp_path, changes, pid="4711"))) == {}


def test_exit_codes(tmp_path: Path) -> None:
    good = examine(machine(tmp_path / "1"))
    advice = examine(machine(tmp_path / "2", {"proc/sys/vm/swappiness": "60"}))
    problem = examine(machine(tmp_path / "3", disk_share=lambda path: 0.95))
    assert [result(found).bad_news for found in (good, advice, problem)] == [False, False, True]
    assert [result(found, strict=True).bad_news for found in (good, advice, problem)] == [
        False,
        True,
        True,
    ]
    document = result(advice).document
    assert (document["ok"], document["counts"]["advice"]) == (True, 1)


def test_the_real_machine_can_be_checked(tmp_path: Path) -> None:
    """On the real machine every check ends, and fsync is measured on a real file that is deleted
    afterwards.
    """
    findings = examine(MachineFacts(folder=tmp_path), write=True)
    assert {"open files", "space", "fsync", "version"} <= {finding.check for finding in findings}
    assert list(tmp_path.iterdir()) == []
