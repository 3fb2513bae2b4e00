"""A disk that fails, at every operation: full, broken, or unable to flush. What was promised is
kept, what cannot be kept is not promised.

The same runs as those of the crash points, each with one operation that fails; the store goes on,
or says why it cannot, and the next start finds everything.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from simulated_disk import Fault, Operation, SimulatedDisk
from store_simulation import Simulation, deterministic, simulated_config
from stores import SteppingClock

from triomq.broker.store.core.config import FlushMode
from triomq.broker.store.core.errors import DiskFull, FlushFailed, StoreError, StoreIoError
from triomq.broker.store.opening import close_files, load_store

BATCHES = 4
GROWING = ("write", "create", "allocate", "make directory")


def simulate(folder: Path, seed: int = 1) -> Simulation:
    return Simulation(folder, FlushMode.SYNC, seed, record_points=False)


def operations(folder: Path, chosen: Callable[[Operation], bool]) -> list[Operation]:
    """The operations of one life in which nothing fails."""
    simulation = simulate(folder / "whole")
    simulation.run(BATCHES)
    found = [operation for operation in simulation.operations if chosen(operation)]
    assert len(found) > 5
    return found


def full_for_a_while(number: int) -> Callable[[Operation], Fault | None]:
    """Three operations that need room find none; half of what they write may get there."""
    return lambda one: (
        Fault(errno.ENOSPC, torn_bytes=len(one.data) // 2)
        if one.kind in GROWING and number <= one.number < number + 3
        else None
    )


def broken_at(number: int) -> Callable[[Operation], Fault | None]:
    return lambda one: (
        Fault(errno.EIO, torn_bytes=len(one.data) // 2) if one.number == number else None
    )


def leaves(error: BaseException) -> list[BaseException]:
    return (
        [leaf for one in error.exceptions for leaf in leaves(one)]
        if isinstance(error, BaseExceptionGroup)
        else [error]
    )


def check_recovered(simulation: Simulation, *, power_seed: int | None = None) -> None:
    """Recover what is left, in place or after a power failure, and compare it with the ledger."""
    root = simulation.root
    if power_seed is not None:
        root = simulation.root.with_name(f"{simulation.root.name}-{power_seed}")
        simulation.disk.image().after_power_failure(root, power_seed)
    config, clock = simulated_config(root, simulation.mode), SteppingClock(simulation.clock_ms)

    async def recover() -> None:
        store = await load_store(config, clock, SimulatedDisk(root))
        try:
            await simulation.ledger.check(
                config,
                store,
                simulation.ledger.moment(None),
                power=power_seed is not None,
                sync=True,
            )
        finally:
            close_files(store)

    with deterministic(0):
        trio.run(recover)


@pytest.mark.feature("37b")
def test_a_disk_that_is_full_at_any_operation(tmp_path: Path) -> None:
    """From one operation on for a while: messages are refused, nothing breaks, and when there is
    room again all goes on by itself.
    """
    for operation in operations(tmp_path, lambda one: one.kind in GROWING):
        simulation = simulate(tmp_path / str(operation.number))
        simulation.disk.fault = full_for_a_while(operation.number)
        starting = False
        try:
            simulation.run(BATCHES)
        except DiskFull:  # while it starts; then the operator is told, and nobody else
            starting = True
            assert not simulation.ledger.attempted
        except BaseException as error:
            error.add_note(
                f"the disk was full at operation {operation.number}, {operation.kind}"
                f" {operation.path.name}"
            )
            raise
        simulation.disk.fault = lambda _: None
        if starting:
            simulation.run(BATCHES)
        assert len(simulation.ledger.acknowledged) > BATCHES
        check_recovered(simulation, power_seed=operation.number)
        check_recovered(simulation)


@pytest.mark.feature("37b")
def test_an_error_of_any_write_costs_no_message(tmp_path: Path) -> None:
    """The sender of a message that cannot be written is told so; an index that cannot be written
    ends the store.
    """
    for operation in operations(tmp_path, lambda one: one.kind in ("write", "create")):
        simulation = simulate(tmp_path / str(operation.number))
        simulation.disk.fault = broken_at(operation.number)
        try:
            simulation.run(BATCHES)
        except (BaseExceptionGroup, StoreIoError) as error:
            if {type(leaf) for leaf in leaves(error)} != {StoreIoError}:
                error.add_note(
                    f"the write failed at operation {operation.number}, {operation.kind}"
                    f" {operation.path.name}"
                )
                raise
            died = True
        else:
            died = False
        assert (simulation.root / "abort").exists() == (died and bool(simulation.ledger.attempted))
        check_recovered(simulation, power_seed=operation.number)
        check_recovered(simulation)


@pytest.mark.feature("37b", "51c")
def test_an_fsync_that_fails_ends_the_store_and_what_it_lost_was_not_promised(
    tmp_path: Path,
) -> None:
    """The system throws away what it could not write, and its cache goes on showing it. The next
    start must not take that for stored.
    """
    check_failed_syncs(tmp_path)


def check_failed_syncs(folder: Path) -> None:
    for operation in operations(folder, lambda one: one.kind in ("sync", "sync names")):
        simulation = simulate(folder / str(operation.number))
        disk, ledger = simulation.disk, simulation.ledger
        disk.fault = broken_at(operation.number)
        known: list[int] = []
        disk.before = lambda one, number=operation.number, known=known, ledger=ledger: (
            known.append(len(ledger.acknowledged)) if one.number == number else None
        )  # type: ignore[misc]
        with pytest.raises((BaseExceptionGroup, StoreError)) as caught:
            simulation.run(BATCHES)
        assert {type(leaf) for leaf in leaves(caught.value)} <= {FlushFailed, StoreIoError}, (
            operation
        )
        assert (simulation.root / "abort").exists() or not ledger.attempted
        assert len(ledger.acknowledged) == known[0], (
            f"after the failed {operation.kind} of {operation.path.name} messages were acknowledged"
        )
        check_recovered(simulation, power_seed=operation.number)
        # The machine did not stop: the next start reads through the same cache. It goes on for a
        # while, then power fails.
        simulation.run(2)
        assert len(ledger.acknowledged) > known[0]
        check_recovered(simulation, power_seed=operation.number + 1)


def test_a_start_that_believes_the_page_cache_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedDisk, "drop_cache", lambda disk, path: None)
    with pytest.raises(AssertionError):
        check_failed_syncs(tmp_path)
