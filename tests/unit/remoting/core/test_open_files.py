"""How a low limit of open files is shared, and the message when none is left."""

from __future__ import annotations

import errno

import pytest

from triomq.broker.store.core.config import StoreConfig
from triomq.remoting.core import open_files
from triomq.remoting.core.open_files import ConnectionBudget, Places, explained, none_left


@pytest.mark.parametrize(
    ("files", "clients", "few", "queue_files"),
    [
        (8, 1, 1, 2),
        (64, 22, 1, 8),
        (256, 84, 6, 32),
        (1024, 336, 24, 128),
        (4096, 2688, 192, 512),
        (1_048_576, 916_608, 65_472, 512),
    ],
)
def test_what_connections_leave_for_the_rest(
    monkeypatch: pytest.MonkeyPatch, files: int, clients: int, few: int, queue_files: int
) -> None:
    monkeypatch.setattr(open_files, "limit", lambda: files)
    budget = ConnectionBudget.of_process()
    assert {port: places.most for port, places in budget.by_port().items()} == {
        "clients": clients,
        "slaves": few,
        "probes": few,
    }
    assert clients + 2 * few + queue_files < files, (
        "the log, other servers and so on need some, too"
    )
    assert StoreConfig().opened_at(bytes(8)).open_files_max == queue_files


def test_a_returned_place_can_be_taken_again() -> None:
    places = Places(2)
    assert [places.take() for _ in range(4)] == [True, True, False, False]
    assert (places.taken, places.refused) == (2, 2)
    places.leave()
    assert [places.take(), places.take()] == [True, False]
    assert (places.taken, places.refused) == (2, 3)


def test_an_error_names_the_limit_to_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "limit", lambda: 256)
    process, system, other = (
        OSError(number, reason)
        for number, reason in (
            (errno.EMFILE, "Too many"),
            (errno.ENFILE, "Too many"),
            (errno.EACCES, "Not yours"),
        )
    )
    assert (
        explained(process)
        == "Too many: this process may have 256 (ulimit -n); raise that limit, or close connections"
    )
    assert (
        explained(system)
        == "Too many: raise the system's limit (sysctl fs.file-max), or stop processes"
    )
    assert explained(other) == "Not yours"
    assert [none_left(error) for error in (process, system, other, ValueError(), None)] == [
        True,
        True,
        False,
        False,
        False,
    ]
