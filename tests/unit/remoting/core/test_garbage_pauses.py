"""Full collections of a server skip what has survived one before."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator

import attrs
import pytest

from triomq.remoting.core.garbage_pauses import CHECK_SECONDS, FROZEN_MIN, GarbagePauses

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="Python itself collects in increments"
)


@attrs.define(eq=False, slots=False)
class Cycle:
    """An object that only a collection frees."""

    me: object = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _server() -> Iterator[None]:
    """One that has started."""
    before = gc.get_threshold()
    pauses = GarbagePauses()
    pauses.begin()
    pauses.started()
    yield
    pauses.end()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_only_young_objects_are_visited() -> None:
    held = [Cycle() for _ in range(1000)]
    gc.collect()
    held.clear()
    assert gc.collect() == 0
    for _ in range(10):
        Cycle()
    assert gc.collect() >= 10


def test_reference_counts_free_frozen_objects() -> None:
    held = [[each] for each in range(1000)]
    gc.collect()
    before = gc.get_freeze_count()
    held.clear()
    assert gc.get_freeze_count() <= before - 1000


@pytest.mark.parametrize(("growth", "freed"), [(0, False), (3, True)])
def test_growth_of_what_is_frozen_is_looked_at(
    growth: int, freed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [Cycle() for _ in range(1000)]
    gc.collect()
    held.clear()
    known = max(FROZEN_MIN, gc.get_freeze_count())
    monkeypatch.setattr(gc, "get_freeze_count", lambda: growth * known)
    gc.collect()
    assert gc.collect() == 0, "not before an hour is over"
    later = time.monotonic() + CHECK_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    gc.collect()  # sees the growth
    assert (gc.collect() >= 1000) == freed
    monkeypatch.undo()
