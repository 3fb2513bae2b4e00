"""Checks of one machine: limits, memory, disk, clock, network, Python.  Each is a function Machine -> findings.

RocketMQ's own advice (distribution/bin/os.sh) is made for memory-mapped files and a Java heap.  Here files are written by plain calls and
made durable by fsync, so of that list only what matters for that is left, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from triomq.client.admin.doctor.finding import Finding, Level, ok, unknown
from triomq.client.admin.doctor.machine import CLOCK_UNSYNCHRONISED, Machine

FILES_WANTED, FILES_LEAST = 65_536, 4_096
BACKLOG = 1_024
MAPS_LEAST = 65_530
SWAPPINESS_MAX = 10
MEMORY_LEAST = 256 << 20
DELETES_ABOVE, REFUSES_ABOVE = 0.75, 0.90
FSYNC_SLOW, FSYNC_TOO_FAST = 0.010, 0.000_020
PORTS = {9876: "name server", 10911: "broker", 10909: "broker, fast port", 10912: "broker, replication"}
SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies", "pit"})
GOOD_SCHEDULERS = frozenset({"none", "noop", "mq-deadline", "deadline", "kyber"})
REMOTE_KINDS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.s3fs", "vboxsf", "virtiofs"})
UNSAFE_OPTIONS = frozenset({"nobarrier", "barrier=0", "data=writeback"})


def limits(machine: Machine) -> Iterator[Finding]:
    """Open files."""
    files = machine.soft_limit("Max open files")
    if files is None:
        yield unknown("limits", "open files")
    elif files >= FILES_WANTED:
        yield ok("limits", "open files", str(files))
    else:
        yield Finding(
            "limits",
            "open files",
            Level.PROBLEM if files < FILES_LEAST else Level.ADVICE,
            str(files),
            "every connection and every file of the log and of a queue needs one; when they are used up, nobody can connect any more",
            f"systemd: LimitNOFILE={FILES_WANTED}; shell: ulimit -n {FILES_WANTED}, with nofile in /etc/security/limits.conf; Docker: --ulimit nofile={FILES_WANTED}",
        )


def memory(machine: Machine) -> Iterator[Finding]:
    """How the kernel treats memory."""
    yield _number(
        machine, "memory", "proc/sys/vm/swappiness", "vm.swappiness", lambda value: value <= SWAPPINESS_MAX,
        "a broker that is idle for a while is swapped out, and its next answers wait for the disk", "sysctl -w vm.swappiness=10",
    )
    yield _number(
        machine, "memory", "proc/sys/vm/overcommit_memory", "vm.overcommit_memory", lambda value: value != 2,
        "with strict accounting a broker fails to get memory while the page cache holds most of it", "sysctl -w vm.overcommit_memory=1",
    )
    yield _number(
        machine, "memory", "proc/sys/vm/zone_reclaim_mode", "vm.zone_reclaim_mode", lambda value: value == 0,
        "a NUMA node throws away its page cache although others have memory, so reads of the log's tail go to the disk", "sysctl -w vm.zone_reclaim_mode=0",
    )
    yield _number(
        machine, "memory", "proc/sys/vm/max_map_count", "vm.max_map_count", lambda value: value >= MAPS_LEAST,
        "readers map the files of the log", f"sysctl -w vm.max_map_count={MAPS_LEAST}",
    )
    stalls = "so much unwritten data may gather that the write that ends it stalls every sender for seconds"
    yield _number(
        machine, "memory", "proc/sys/vm/dirty_background_ratio", "vm.dirty_background_ratio", lambda value: value <= 20, stalls, "sysctl -w vm.dirty_background_ratio=5"
    )
    yield _number(machine, "memory", "proc/sys/vm/dirty_ratio", "vm.dirty_ratio", lambda value: value <= 60, stalls, "sysctl -w vm.dirty_ratio=20")
    huge = machine.chosen("sys/kernel/mm/transparent_hugepage/enabled")
    if huge is None:
        yield unknown("memory", "transparent huge pages")
    elif huge == "always":
        yield Finding(
            "memory", "transparent huge pages", Level.ADVICE, huge, "the kernel joins pages behind the broker's back: more memory, and pauses while it does",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    else:
        yield ok("memory", "transparent huge pages", huge)
    limit = machine.number("sys/fs/cgroup/memory.max") or machine.number("sys/fs/cgroup/memory/memory.limit_in_bytes")
    if limit is not None and limit < MEMORY_LEAST:
        yield Finding(
            "memory", "limit of the control group", Level.ADVICE, f"{limit >> 20} MiB", "buffers of many clients alone may need more, and the kernel kills who exceeds it",
            f"give a broker {MEMORY_LEAST >> 20} MiB or more, or lower serverBuffersMaxBytes",
        )


def disk(machine: Machine) -> Iterator[Finding]:
    """The file system and the device of the store."""
    share = machine.disk_share(machine.folder)
    found = f"{share:.0%} of the file system of {machine.folder}"
    if share < DELETES_ABOVE:
        yield ok("disk", "space", found)
    else:
        level = Level.PROBLEM if share >= REFUSES_ABOVE else Level.ADVICE
        why = "above 90 % messages are refused" if level is Level.PROBLEM else "above 75 % expired files go at any hour, above 85 % also those that are not expired"
        yield Finding("disk", "space", level, found, why, "free space, enlarge the file system, or lower fileReservedTime")
    mount = machine.mount()
    if mount is None:
        yield unknown("disk", "file system")
        return
    yield _kind(mount.kind, mount.point)
    unsafe = sorted(mount.options & UNSAFE_OPTIONS)
    if unsafe:
        yield Finding(
            "disk", "mount options", Level.PROBLEM, ",".join(unsafe), "what was acknowledged after fsync may be gone after a power failure",
            f"mount {mount.point} without {','.join(unsafe)}",
        )
    elif "strictatime" in mount.options:
        yield Finding("disk", "mount options", Level.ADVICE, "strictatime", "every read of the log becomes a write", f"mount {mount.point} with noatime")
    else:
        yield ok("disk", "mount options", ",".join(sorted(mount.options & {"noatime", "relatime", "nodiratime", "lazytime"})) or "usual")
    yield _scheduler(machine, mount.device)


def _kind(kind: str, point: str) -> Finding:
    found = f"{kind} at {point}"
    if kind in ("tmpfs", "ramfs"):
        return Finding("disk", "file system", Level.PROBLEM, found, "it is memory: nothing survives a restart of the machine", "put the store on a disk")
    if kind == "overlay":
        return Finding(
            "disk", "file system", Level.PROBLEM, found, "the store would live in the container's own layer and go with the container", "mount a volume there (docs/deploy.md)"
        )
    if kind in REMOTE_KINDS:
        return Finding(
            "disk", "file system", Level.ADVICE, found, "each fsync is a round trip, locks and durability are as good as the server's", "use a local disk and a slave for safety"
        )
    return ok("disk", "file system", found)


def _scheduler(machine: Machine, device: str) -> Finding:
    place = (machine.root / "sys/dev/block" / device).resolve()
    for folder in (place, place.parent):
        try:
            text = (folder / "queue" / "scheduler").read_text().strip()
        except OSError:
            continue
        chosen = text.partition("[")[2].partition("]")[0] or text
        if chosen in GOOD_SCHEDULERS:
            return ok("disk", "I/O scheduler", f"{chosen} ({folder.name})")
        return Finding(
            "disk", "I/O scheduler", Level.ADVICE, f"{chosen} ({folder.name})", "it shares the disk fairly among programs, and an fsync waits for its turn",
            f"echo mq-deadline > /sys/block/{folder.name}/queue/scheduler",
        )
    return unknown("disk", "I/O scheduler")


def fsync(machine: Machine) -> Iterator[Finding]:
    """How long a small write takes to be safe: what a send with SYNC_FLUSH waits for.  Writes to the folder."""
    try:
        taken = machine.fsync_seconds(machine.folder)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        yield Finding(
            "disk", "fsync", Level.PROBLEM, f"{machine.folder}: {reason}", "a broker could not write there either",
            f"create the folder and give it to the user of the broker: install -d -o triomq {machine.folder}",
        )
        return
    median, worst = taken[len(taken) // 2], taken[-1]
    found = f"median {median * 1000:.3f} ms, longest {worst * 1000:.1f} ms"
    if median > FSYNC_SLOW:
        yield Finding(
            "disk", "fsync", Level.ADVICE, found, "with SYNC_FLUSH every batch of sends waits so long", "use an SSD with power-loss protection, or ASYNC_FLUSH with a SYNC_MASTER"
        )
    elif median < FSYNC_TOO_FAST:
        yield Finding(
            "disk", "fsync", Level.ADVICE, found, "no disk is so fast: something answers before the data is safe", "look for a write cache without battery, or a file system in memory"
        )
    else:
        yield ok("disk", "fsync", found)


def clock(machine: Machine) -> Iterator[Finding]:
    """Store times, retention and delayed messages follow the wall clock."""
    state = machine.clock_state()
    if state is None:
        yield unknown("clock", "synchronisation")
    elif state == CLOCK_UNSYNCHRONISED:
        yield Finding(
            "clock", "synchronisation", Level.ADVICE, "nothing synchronises the clock", "store times, retention, delayed messages and searches by time follow it",
            "run chrony, systemd-timesyncd or the host's time service",
        )
    else:
        yield ok("clock", "synchronisation", "synchronised")
    source = machine.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source is None:
        yield unknown("clock", "clock source")
    elif source in SLOW_CLOCKS:
        yield Finding(
            "clock", "clock source", Level.ADVICE, source, "reading the time costs a system call and more, and every message reads it", "boot with tsc, or with the hypervisor's clock"
        )
    else:
        yield ok("clock", "clock source", source)


def network(machine: Machine) -> Iterator[Finding]:
    """Backlog and ports."""
    yield _number(
        machine, "network", "proc/sys/net/core/somaxconn", "net.core.somaxconn", lambda value: value >= BACKLOG,
        "when all clients come back at once, connections beyond it are dropped", f"sysctl -w net.core.somaxconn={BACKLOG}",
    )
    words = (machine.text("proc/sys/net/ipv4/ip_local_port_range") or "").split()
    if len(words) == 2:
        low, high = map(int, words)
        reserved = _ports(machine.text("proc/sys/net/ipv4/ip_local_reserved_ports") or "")
        taken = sorted(port for port in PORTS if low <= port <= high and port not in reserved)
        if taken:
            listed = ",".join(map(str, taken))
            yield Finding(
                "network", "ephemeral ports", Level.ADVICE, f"{low} to {high}", f"an outgoing connection may hold {listed} when a server wants to start",
                f"sysctl -w net.ipv4.ip_local_reserved_ports={listed}, or net.ipv4.ip_local_port_range='32768 60999'",
            )
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


def processors(machine: Machine) -> Iterator[Finding]:
    """A broker is one loop on one core: what slows that core slows all."""
    governor = machine.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor == "powersave":
        yield Finding(
            "processor", "frequency governor", Level.ADVICE, governor, "short work between waits never raises the frequency, so each request takes longer",
            "cpupower frequency-set -g performance",
        )
    elif governor is not None:
        yield ok("processor", "frequency governor", governor)
    quota = (machine.text("sys/fs/cgroup/cpu.max") or "").split()
    if len(quota) == 2 and quota[0] != "max" and int(quota[0]) < int(quota[1]):
        yield Finding(
            "processor", "limit of the control group", Level.ADVICE, f"{int(quota[0]) / int(quota[1]):.2g} cores",
            "the loop is stopped for the rest of each period once that is used up: pauses of up to a tenth of a second", "give it a whole core, or no limit",
        )


def python(machine: Machine) -> Iterator[Finding]:
    """The interpreter and what makes it fast."""
    version = ".".join(map(str, machine.python))
    if machine.python < (3, 11):
        yield Finding("python", "version", Level.PROBLEM, version, "TrioMQ needs 3.11 or newer", "install a newer Python")
    else:
        yield ok("python", "version", version)
    modules = machine.modules()
    if modules["zlib_ng"]:
        yield ok("python", "zlib-ng", "installed")
    else:
        yield Finding("python", "zlib-ng", Level.ADVICE, "missing", "the checksum of every message takes five times as long", "pip install zlib-ng")
    for module, extra in (("lz4", "lz4"), ("zstandard", "zstd")):
        found = "installed" if modules[module] else f"missing; only needed to read and write such bodies (pip install 'triomq[{extra}]')"
        yield ok("python", module, found)


def _number(machine: Machine, area: str, path: str, name: str, good: Callable[[int], bool], why: str, fix: str) -> Finding:
    value = machine.number(path)
    if value is None:
        return unknown(area, name)
    if good(value):
        return ok(area, name, str(value))
    return Finding(area, name, Level.ADVICE, str(value), why, f"{fix}, and the same in /etc/sysctl.d/triomq.conf")


CHECKS: Sequence[Callable[[Machine], Iterator[Finding]]] = (limits, memory, disk, clock, network, processors, python)


def examine(machine: Machine, *, write: bool = False) -> list[Finding]:
    """All findings; `write` allows the check that writes to the folder."""
    checks = (*CHECKS, fsync) if write else CHECKS
    return [finding for check in checks for finding in check(machine)]
