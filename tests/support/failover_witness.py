"""What a group in controller mode has promised, checked while it runs: the log that its masters
have confirmed, once and for ever.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs
from replicated_brokers import log_bytes
from simulated_cluster import BROKER, SEGMENT_BYTES, Life, Service, SimulatedCluster
from simulated_reading import whole_records

from triomq.broker.replication.epochs import EpochHistory
from triomq.broker.replication.master_set import MasterSet, SetRules
from triomq.broker.replication.set_keeper import SetKeeper
from triomq.broker.roles import role
from triomq.broker.roles.tenure import Tenure
from triomq.broker.store.store import MessageStore
from triomq.namesrv.controller import requests, serve_controller
from triomq.namesrv.controller.broker_groups import BrokerGroups
from triomq.namesrv.controller.command_log import CommandLog
from triomq.namesrv.controller.controller_files import ControllerFolder
from triomq.namesrv.controller.liveness import Sighting
from triomq.namesrv.controller.raft.settings import RaftSettings
from triomq.namesrv.controller.serve_controller import ControllerParts
from triomq.namesrv.controller.state import Group
from triomq.remoting.protocol.record_reader import read_record


@attrs.define(eq=False)
class Witness:
    """Sees every controller and every master of a simulated cluster."""

    cluster: SimulatedCluster
    durable: bool
    """Whether a member has what its disk has."""
    confirmed: bytearray = attrs.field(factory=bytearray)
    masters: dict[int, tuple[int, Life]] = attrs.field(factory=dict)
    """Epoch -> id and life of the broker that has taken messages in it."""
    lost_ids: set[int] = attrs.field(factory=set)
    """Ids of brokers whose disks were lost."""
    controllers: dict[str, BrokerGroups] = attrs.field(factory=dict)
    keepers: dict[str, SetKeeper] = attrs.field(factory=dict)
    """Service -> what it had as master last."""
    _seen: dict[str, int] = attrs.field(factory=dict)
    """Service -> up to where what it has confirmed as this master was compared."""

    def group(self) -> Group | None:
        """Return the group as the newest controller has it."""
        states = (groups.state.groups.get(BROKER) for groups in self.controllers.values())
        known = [group for group in states if group is not None]
        return max(known, key=lambda one: (one.master_epoch, one.sync_set_epoch), default=None)

    def service(self, group: Group, broker_id: int) -> Service:
        """Return the broker with an id."""
        address = group.replicas[broker_id].address.partition(":")[0]
        return next(one for one in self.cluster.services.values() if one.address == address)

    def set_is_open(self) -> bool:
        """Return whether the controllers may have, or agree to, another set than is known here."""
        logs = [groups.log.lasting.node for groups in self.controllers.values()]
        applied = max(node.state.applied_index for node in logs)
        return any(node.log.last_index > applied for node in logs) or any(
            keeper.leads.pending
            for name, keeper in self.keepers.items()
            if self.cluster.services[name].running
        )

    # While it runs

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See what happens in the block."""
        settle, made, begin = SetKeeper._settle, SetKeeper.__attrs_post_init__, Tenure.begin
        open_parts = ControllerParts.open

        def settled(keeper: SetKeeper) -> None:
            self._see_confirmed(keeper)
            settle(keeper)

        def keeper_made(keeper: SetKeeper) -> None:
            made(keeper)
            self.keepers[self._asking()], self._seen[self._asking()] = keeper, 0

        async def begun(tenure: Tenure, store: MessageStore) -> None:
            await begin(tenure, store)
            if tenure.is_master:
                self._see_master(tenure, store)

        def opened(*arguments: Any, **named: Any) -> ControllerParts:
            parts = open_parts(*arguments, **named)
            self.controllers[self._asking()] = parts.groups
            return parts

        def folder_of(path: Path, members: list[str]) -> ControllerFolder:
            return ControllerFolder(path, members, self.cluster.disk_of(path))

        def log_of(**named: Any) -> CommandLog:
            plain, rate = RaftSettings(), self._rate()
            settings = RaftSettings(
                heartbeat_seconds=plain.heartbeat_seconds / rate,
                election_seconds=plain.election_seconds / rate,
            )
            return CommandLog(settings=settings, **named)

        def sighting_of(*, timeout: float, **named: Any) -> Sighting:
            return Sighting(timeout=timeout / self._rate(), **named)

        def set_of(*, rules: SetRules, **named: Any) -> MasterSet:
            lease = rules.lease_seconds / self._rate()
            return MasterSet(rules=attrs.evolve(rules, lease_seconds=lease), **named)

        with ExitStack() as patches:
            for owner, name, value in (
                (SetKeeper, "_settle", settled),
                (SetKeeper, "__attrs_post_init__", keeper_made),
                (Tenure, "begin", begun),
                (ControllerParts, "open", opened),
                (serve_controller, "ControllerFolder", folder_of),
                (serve_controller, "CommandLog", log_of),
                (requests, "Sighting", sighting_of),
                (role, "MasterSet", set_of),
            ):
                patches.enter_context(patch.object(owner, name, value))
            yield

    def _asking(self) -> str:
        return self.cluster.simulation.network.asking().name

    def _rate(self) -> float:
        """Return how fast the clock of the asking machine runs: up to 4.5 % too slow or too fast.
        All times in it are as much longer or shorter for the others.
        """
        name = self._asking()
        return random.Random(f"{self.cluster.simulation.seed} {name}").uniform(0.955, 1.045)

    def complain(self, text: str) -> None:
        if text not in self.cluster.deaths:
            self.cluster.simulation.trace.note(f"broken: {text}")
            self.cluster.deaths.append(text)

    def _see_master(self, tenure: Tenure, store: MessageStore) -> None:
        """A master may begin: it has all that was ever confirmed, and nobody else its epoch."""
        service = self.cluster.services[self._asking()]
        if service.life is None or not self.cluster.simulation.network.asking().up:
            return
        epoch, held = tenure.mastership.epoch, (tenure.membership.broker_id, service.life)
        if epoch not in self.masters:
            self.cluster.note_start(service)
        if self.masters.setdefault(epoch, held) != held:
            self.complain(
                f"{service.name} is master in epoch {epoch}, as was {self.masters[epoch][0]}"
            )
        end = len(self.confirmed)
        if store.appended.value < end or self._read(service, 0, end) != self.confirmed:
            self.complain(
                f"{service.name}, master in epoch {epoch}, has {store.appended.value} bytes, and"
                f" lacks some of the {end} confirmed ones"
            )
        self._confirm(service, 0, store.confirmed.value)

    def _see_confirmed(self, keeper: SetKeeper) -> None:
        """What is confirmed stays as it is, and each member of the set has it."""
        machine = self.cluster.simulation.network.asking()  # of an earlier life, until it has ended
        name = machine.name
        service, start, end = self.cluster.services[name], self._seen[name], keeper.leads.confirmed
        if not machine.up or keeper is not self.keepers[name] or end <= start:
            return
        self._seen[name] = end
        self._confirm(service, start, end)

    def _confirm(self, service: Service, start: int, end: int) -> None:
        found, known = self._read(service, start, end), len(self.confirmed)
        if found[: known - start] != self.confirmed[start:end]:
            self.complain(f"{service.name} confirms other bytes between {start} and {end}")
        if end <= known:
            return
        self.confirmed += found[max(0, known - start) :]
        group = self.group()
        for broker_id in () if group is None else group.sync_set - self.lost_ids:
            assert group is not None
            member = self.service(group, broker_id)
            if self._read(member, known, end, durable=self.durable) != self.confirmed[known:end]:
                self.complain(
                    f"{service.name} confirms up to {end}, and {member.name} of the set"
                    f" {sorted(group.sync_set)} lacks some of it"
                )

    def see_answer(self, key: str, start: int, copies_min: int) -> None:
        """What was acknowledged is confirmed, and on as many disks as were promised."""
        end = start + 4
        if start >= len(self.confirmed):
            self.complain(f"{key} was acknowledged at {start}, which is not confirmed")
            return
        wanted = self.confirmed[start:end]
        holders = [
            name
            for name, service in self.cluster.services.items()
            if service.disk is not None
            and not service.controls
            and self._read(service, start, end, durable=self.durable) == wanted
        ]
        if len(holders) < copies_min - bool(self.lost_ids):
            self.complain(f"{key} was acknowledged, and only {holders} have it")

    def _read(self, service: Service, start: int, end: int, *, durable: bool = False) -> bytes:
        """Return a part of a broker's log, as far as it is there."""
        disk, found = service.disk, bytearray()
        assert disk is not None
        for first in range(start - start % SEGMENT_BYTES, end, SEGMENT_BYTES):
            name = Path("commitlog") / f"{first:020}"
            if durable:
                data = disk.durable.get(name, b"")
            else:
                data = (disk.root / name).read_bytes() if (disk.root / name).exists() else b""
            found += data[max(0, start - first) : end - first].ljust(
                min(SEGMENT_BYTES, end - first) - max(0, start - first), b"\0"
            )
        return bytes(found)

    # Now and then, and at the end

    def compare_epochs(self) -> None:
        """Two logs are equal wherever they have the same epoch."""
        logs = {}
        for name, service in self.cluster.services.items():
            if service.disk is None or service.controls:
                continue
            if service.life is None or service.life.ready is None:
                continue  # what a power failure has torn is there until the next start
            path = service.disk.root / "epochFileCheckpoint"
            if path.exists() and (service.disk.root / "commitlog").exists():
                history = EpochHistory.decode(path.read_bytes())
                logs[name] = history, whole_records(log_bytes(service.disk.root))
        for (one, (mine, left)), (other, (theirs, right)) in combinations(logs.items(), 2):
            same = {(entry.number, entry.start) for entry in mine.entries} & {
                (entry.number, entry.start) for entry in theirs.entries
            }
            for number, start in same:
                ends = [len(left), len(right)]
                for history in (mine, theirs):
                    ends += [entry.start for entry in history.entries if entry.start > start]
                if left[start : min(ends)] != right[start : min(ends)]:
                    self.complain(f"{one} and {other} differ in epoch {number}, from {start} on")

    def queue_offsets(self) -> list[str]:
        """Queue offsets of the confirmed log are used once, one after the other."""
        data, position, found = bytes(self.confirmed), 0, []
        ends: Counter[tuple[str, int]] = Counter()
        while position < len(data):
            message = read_record(data, position, len(data), False)
            if isinstance(message, str):
                if "unused" not in message:
                    return [f"the confirmed log has no record at {position}: {message}"]
                position += SEGMENT_BYTES - position % SEGMENT_BYTES
                continue
            queue = message.topic, message.queue_id
            if message.queue_offset != ends[queue]:
                found.append(
                    f"{queue}: offset {message.queue_offset} comes after {ends[queue] - 1}"
                )
            ends[queue] = message.queue_offset + 1
            position += message.size
        return found
