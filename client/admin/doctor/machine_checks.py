"""Checks of one machine: limits, memory, disk, clock, network, processor, Python.

RocketMQ's advice (distribution/bin/os.sh) is for memory-mapped files and a Java heap. TrioMQ writes
files with plain calls and fsync, so only the part of that list that matters for these is checked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from triomq.client.admin.doctor.machine import CLOCK_UNSYNCHRONISED, MachineFacts
from triomq.remoting.core.findings import Finding, Level, advice, ok, problem, unknown

FILES_WANTED, FILES_LEAST = 65_536, 4_096
BACKLOG = 1_024
MAPS_LEAST = 65_530
SWAPPINESS_MAX = 10
MEMORY_LEAST = 256 << 20
DELETES_ABOVE, REFUSES_ABOVE = 0.75, 0.90
FSYNC_SLOW, FSYNC_TOO_FAST = 0.010, 0.000_020
PORTS = {
    9876: "name server",
    10911: "broker",
    10909: "broker, fast port",
    10912: "broker, replication",
}
SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies", "pit"})
GOOD_SCHEDULERS = frozenset({"none", "noop", "mq-deadline", "deadline", "kyber"})
REMOTE_KINDS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.s3fs", "vboxsf", "virtiofs"}
)
UNSAFE_OPTIONS = frozenset({"nobarrier", "barrier=0", "data=writeback"})
_STALLS = "the kernel may collect unwritten data until writing it stalls every sender for seconds"
MEMORY_SETTINGS = (
    (
        "vm.swappiness",
        range(SWAPPINESS_MAX + 1),
        SWAPPINESS_MAX,
        "an idle broker is swapped out, and its next answers wait for the disk",
    ),
    (
        "vm.overcommit_memory",
        range(2),
        1,
        "with strict accounting a broker cannot allocate memory that the page cache uses",
    ),
    (
        "vm.zone_reclaim_mode",
        range(1),
        0,
        (
            "a NUMA node drops its page cache although other nodes have free memory, so reads of"
            " the log's end go to the disk"
        ),
    ),
    (
        "vm.max_map_count",
        range(MAPS_LEAST, sys.maxsize),
        MAPS_LEAST,
        "readers map the files of the log",
    ),
    ("vm.dirty_background_ratio", range(21), 5, _STALLS),
    ("vm.dirty_ratio", range(61), 20, _STALLS),
)
"""name, good values, advised value, reason"""


def limits(machine: MachineFacts) -> Iterator[Finding]:
    """Check the limit of open files."""
    files = machine.soft_limit("Max open files")
    if files is None:
        yield unknown("limits", "open files")
    elif files >= FILES_WANTED:
        yield ok("limits", "open files", str(files))
    else:
        yield Finding(
            Level.PROBLEM if files < FILES_LEAST else Level.ADVICE,
            "limits",
            "open files",
            str(files),
            f"systemd: LimitNOFILE={FILES_WANTED}; shell: ulimit -n {FILES_WANTED}, with nofile in"
            f" /etc/security/limits.conf; Docker: --ulimit nofile={FILES_WANTED}",
            "every connection and every file of the log and of a queue needs a descriptor; without"
            " free descriptors, clients cannot connect",
        )


def memory(machine: MachineFacts) -> Iterator[Finding]:
    """Check the kernel's memory settings."""
    for name, good, advised, why in MEMORY_SETTINGS:
        yield _kernel_setting(machine, "memory", name, good, advised, why)
    huge = machine.chosen("sys/kernel/mm/transparent_hugepage/enabled")
    fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    why = "the kernel joins pages of the broker: that takes more memory, and pauses it"
    yield _judged("memory", "transparent huge pages", huge, huge != "always", fix, why)
    limit = machine.number("sys/fs/cgroup/memory.max") or machine.number(
        "sys/fs/cgroup/memory/memory.limit_in_bytes"
    )
    if limit is not None and limit < MEMORY_LEAST:
        fix = f"give a broker {MEMORY_LEAST >> 20} MiB or more, or lower serverBuffersMaxBytes"
        why = "the buffers of many clients may need more, and the kernel then kills the broker"
        yield advice("memory", "limit of the control group", f"{limit >> 20} MiB", fix, why)


def disk(machine: MachineFacts) -> Iterator[Finding]:
    """Check the file system and the device of the store."""
    share = machine.disk_share(machine.folder)
    found = f"{share:.0%} of the file system of {machine.folder}"
    fix = "free space, enlarge the file system, or lower fileReservedTime"
    if share < DELETES_ABOVE:
        yield ok("disk", "space", found)
    elif share < REFUSES_ABOVE:
        why = "expired files are deleted at any hour, above 85 % also files that are not expired"
        yield advice("disk", "space", found, fix, f"above 75 % {why}")
    else:
        yield problem("disk", "space", found, fix, "above 90 % messages are refused")
    mount = machine.mount()
    if mount is None:
        yield unknown("disk", "file system")
        return
    yield _kind(mount.kind, f"{mount.kind} at {mount.point}")
    if unsafe := ",".join(sorted(mount.options & UNSAFE_OPTIONS)):
        fix = f"mount {mount.point} without {unsafe}"
        why = "messages that were acknowledged after fsync may be lost in a power failure"
        yield problem("disk", "mount options", unsafe, fix, why)
    elif "strictatime" in mount.options:
        fix = f"mount {mount.point} with noatime"
        why = "every read of the log becomes a write"
        yield advice("disk", "mount options", "strictatime", fix, why)
    else:
        usual = sorted(mount.options & {"noatime", "relatime", "nodiratime", "lazytime"})
        yield ok("disk", "mount options", ",".join(usual) or "usual")
    yield _scheduler(machine, mount.device)


def _kind(kind: str, found: str) -> Finding:
    if kind in ("tmpfs", "ramfs"):
        fix = "put the store on a disk"
        why = "it is memory: all messages are lost when the machine restarts"
        return problem("disk", "file system", found, fix, why)
    if kind == "overlay":
        fix = "mount a volume there (docs/deploy.md)"
        why = "the store would be in the container's own layer, and deleted with the container"
        return problem("disk", "file system", found, fix, why)
    if kind in REMOTE_KINDS:
        fix = "use a local disk, and a slave for safety"
        why = "each fsync is a round trip; locks and durability depend on the file server"
        return advice("disk", "file system", found, fix, why)
    return ok("disk", "file system", found)


def _scheduler(machine: MachineFacts, device: str) -> Finding:
    place = (machine.root / "sys/dev/block" / device).resolve()
    for folder in (place, place.parent):
        chosen = machine.chosen(f"{folder}/queue/scheduler")
        if chosen is not None:
            found, good = f"{chosen} ({folder.name})", chosen in GOOD_SCHEDULERS
            fix = f"echo mq-deadline > /sys/block/{folder.name}/queue/scheduler"
            why = "it shares the disk fairly among programs, so an fsync waits for the others"
            return _judged("disk", "I/O scheduler", found, good, fix, why)
    return unknown("disk", "I/O scheduler")


def fsync(machine: MachineFacts) -> Iterator[Finding]:
    """Measure a small write with fsync, in the folder: a send with SYNC_FLUSH waits for it."""
    try:
        taken = machine.fsync_seconds(machine.folder)
    except OSError as error:
        found = f"{machine.folder}: {(error.strerror or str(error)).lower()}"
        fix = f"create the folder for the user of the broker: install -d -o triomq {machine.folder}"
        yield problem("disk", "fsync", found, fix, "a broker could not write to the folder")
        return
    median, worst = taken[len(taken) // 2], taken[-1]
    found = f"median {median * 1000:.3f} ms, longest {worst * 1000:.1f} ms"
    if median > FSYNC_SLOW:
        fix = "use an SSD with power-loss protection, or ASYNC_FLUSH with a SYNC_MASTER"
        why = "with SYNC_FLUSH every batch of sends waits for this time"
        yield advice("disk", "fsync", found, fix, why)
    elif median < FSYNC_TOO_FAST:
        fix = "check for a write cache without battery, or a file system in memory"
        why = "too fast for a disk: a cache answers before the data is durable"
        yield advice("disk", "fsync", found, fix, why)
    else:
        yield ok("disk", "fsync", found)


def clock(machine: MachineFacts) -> Iterator[Finding]:
    """Check the wall clock: store times, retention and delayed messages follow it."""
    state = machine.clock_state()
    if state is None:
        yield unknown("clock", "synchronisation")
    elif state == CLOCK_UNSYNCHRONISED:
        found = "nothing synchronises the clock"
        fix = "run chrony, systemd-timesyncd or the host's time service"
        why = "store times, retention, delayed messages and searches by time follow it"
        yield advice("clock", "synchronisation", found, fix, why)
    else:
        yield ok("clock", "synchronisation", "synchronised")
    source = machine.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
    fix = "boot with tsc, or with the hypervisor's clock"
    why = "reading the time needs a slow system call, and every message reads it"
    yield _judged("clock", "clock source", source, source not in SLOW_CLOCKS, fix, why)


def network(machine: MachineFacts) -> Iterator[Finding]:
    """Check the backlog and the ports."""
    name, good = "net.core.somaxconn", range(BACKLOG, sys.maxsize)
    why = "when all clients reconnect at once, connections beyond the backlog are dropped"
    yield _kernel_setting(machine, "network", name, good, BACKLOG, why)
    words = (machine.text("proc/sys/net/ipv4/ip_local_port_range") or "").split()
    if len(words) == 2:
        low, high = map(int, words)
        reserved = _ports(machine.text("proc/sys/net/ipv4/ip_local_reserved_ports") or "")
        taken = sorted(port for port in PORTS if low <= port <= high and port not in reserved)
        if taken:
            listed = ",".join(map(str, taken))
            fix = (
                f"sysctl -w net.ipv4.ip_local_reserved_ports={listed}, or"
                " net.ipv4.ip_local_port_range='32768 60999'"
            )
            why = f"an outgoing connection may use {listed} when a server starts"
            yield advice("network", "ephemeral ports", f"{low} to {high}", fix, why)
        else:
            yield ok("network", "ephemeral ports", f"{low} to {high}")
    else:
        yield unknown("network", "ephemeral ports")
    listening = machine.listening_ports()
    if listening is None:
        yield unknown("network", "usual ports")
    else:
        used = [f"{port} ({name})" for port, name in PORTS.items() if port in listening]
        yield ok("network", "usual ports", f"in use: {', '.join(used)}" if used else "all free")


def _ports(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low:
            found.update(range(int(low), int(high or low) + 1))
    return found


def processors(machine: MachineFacts) -> Iterator[Finding]:
    """Check the processor: a broker is one loop on one core."""
    governor = machine.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor is not None:
        good, fix = governor != "powersave", "cpupower frequency-set -g performance"
        why = "short work between waits does not raise the frequency, so each request takes longer"
        yield _judged("processor", "frequency governor", governor, good, fix, why)
    quota = (machine.text("sys/fs/cgroup/cpu.max") or "").split()
    if len(quota) == 2 and quota[0] != "max" and int(quota[0]) < int(quota[1]):
        found = f"{int(quota[0]) / int(quota[1]):.2g} cores"
        fix = "allow a whole core, or set no limit"
        why = (
            "the loop is stopped for the rest of each period when the limit is used up: pauses of"
            " up to 100 ms"
        )
        yield advice("processor", "limit of the control group", found, fix, why)


def python(machine: MachineFacts) -> Iterator[Finding]:
    """Check the interpreter and the packages that make it fast."""
    yield ok("python", "version", f"{sys.version_info.major}.{sys.version_info.minor}")
    modules = machine.modules()
    good = modules["zlib_ng"]
    why = "the checksum of every message takes five times as long"
    found = "installed" if good else "missing"
    yield _judged("python", "zlib-ng", found, good, "pip install zlib-ng", why)
    for module, extra in (("lz4", "lz4"), ("zstandard", "zstd")):
        missing = (
            f"missing; only needed for bodies with this compression (pip install 'triomq[{extra}]')"
        )
        yield ok("python", module, "installed" if modules[module] else missing)


def _judged(subject: str, check: str, found: str | None, good: bool, fix: str, why: str) -> Finding:
    """Return a finding: unknown if nothing was found, otherwise ok or advice."""
    if found is None:
        return unknown(subject, check)
    return ok(subject, check, found) if good else advice(subject, check, found, fix, why)


def _kernel_setting(
    machine: MachineFacts, subject: str, name: str, good: range, advised: int, why: str
) -> Finding:
    value = machine.number(f"proc/sys/{name.replace('.', '/')}")
    if value is None:
        return unknown(subject, name)
    fix = f"sysctl -w {name}={advised}, and the same in /etc/sysctl.d/triomq.conf"
    return _judged(subject, name, str(value), value in good, fix, why)


CHECKS: Sequence[Callable[[MachineFacts], Iterator[Finding]]] = (
    limits,
    memory,
    disk,
    clock,
    network,
    processors,
    python,
)


def examine(machine: MachineFacts, *, write: bool = False) -> list[Finding]:
    """Return all findings; ``write`` allows the check that writes to the folder."""
    checks = (*CHECKS, fsync) if write else CHECKS
    return [finding for check in checks for finding in check(machine)]
