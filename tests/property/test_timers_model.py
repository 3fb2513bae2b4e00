"""Timers against a list: sends, recalls, a clock that jumps, saves, stops and crashes at random.

No message may come early, be lost, or come although it was recalled in time. Twice may come only
what was delivered after the last save before a crash. All times are those of the clock, wherever it
is set to, also while the broker is stopped.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
import trio
from stores import BORN_HOST, NOW_MS, tiny_config

from triomq.broker.services.statistics import Statistics
from triomq.broker.services.timers import opening, timers
from triomq.broker.services.timers.timer_delivery import LocalTimerDelivery
from triomq.broker.services.timers.timer_rules import TimerRules, recall_key
from triomq.broker.services.timers.timer_schedule import TimerSchedule
from triomq.broker.services.timers.timer_settings import TimerSettings
from triomq.broker.services.timers.timers import Timers
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.opening import close_files, finish_store, load_store
from triomq.broker.store.timer.timer_check import MARK_POSITION
from triomq.broker.store.timer.timer_files import TimerFiles, TimerPlace
from triomq.remoting.protocol.bodies.timer import TimerCheckPoint
from triomq.remoting.protocol.message_properties import TIMER_DELETE_KEY, properties_text
from triomq.remoting.protocol.record_reader import decode_records

TOPIC = "T"
STEPS = 60
SETTINGS = TimerSettings(
    precision_ms=100, roll_window_slots=8, log_file_bytes=52 * 20 + 16, save_interval_ms=1
)


@attrs.define
class Model:
    """What was promised. Times are ms of the simulated clock."""

    due: dict[str, int] = attrs.field(factory=dict)
    recalled: set[str] = attrs.field(factory=set)
    may_repeat: Counter[str] = attrs.field(factory=Counter)
    unsaved: set[str] = attrs.field(factory=set)
    """Delivered since the last save."""
    stepped: dict[str, int] = attrs.field(factory=dict)
    """Message of several steps -> how often it may have begun one since the last save: a step ends
    with a copy of the message, and a crash may have both.
    """
    seen: int = 0
    delivered: Counter[str] = attrs.field(factory=Counter)


@attrs.define(eq=False)
class World:
    """A store with timers and a clock, driven by hand."""

    folder: Path
    choose: random.Random
    now: int = NOW_MS
    model: Model = attrs.field(factory=Model)
    timers: Timers | None = None
    count: int = 0

    @asynccontextmanager
    async def running(self, *, crash: bool) -> AsyncIterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        store = await load_store(
            tiny_config(self.folder, segment_size_bytes=1 << 20), lambda: self.now, Disk()
        )
        kept = await opening.open_timers(SETTINGS, store, lambda: self.now)
        kept.schedule.start(self.now)
        self.timers = kept
        try:
            yield
            if not crash:
                await store.flusher.flush()
                await kept.close()
                self.model.unsaved.clear()
                await finish_store(store)
        finally:
            kept.files.close()
            close_files(store)
            self.timers = None

    def _append(self, body: str, deliver_ms: int, **properties: str) -> None:
        assert self.timers is not None
        draft = Draft(
            TOPIC,
            0,
            body.encode(),
            properties_text({"UNIQ_KEY": body, **properties}).encode(),
            0,
            0,
            self.now,
            BORN_HOST,
        )
        self.timers.delay(draft, deliver_ms)
        self.timers.store.append([draft])

    def send(self) -> None:
        """Send a message that is due soon, in a few slots, or beyond the window."""
        self.count += 1
        key = f"m{self.count}"
        far = self.choose.choice((20, 150, 600, 2_500))
        deliver = self.now + self.choose.randint(1, far)
        self._append(key, deliver)
        self.model.due[key] = deliver
        if deliver - self.now > 700:
            self.model.stepped[key] = (deliver - self.now) // 350

    def recall(self) -> None:
        waiting = [
            key
            for key, due in self.model.due.items()
            if due > self.now and not self.model.delivered[key] and key not in self.model.recalled
        ]
        if waiting:
            key = self.choose.choice(waiting)
            due = self.model.due[key]
            assert self.timers is not None
            name = recall_key(TOPIC, key, with_topic=self.choose.random() < 0.5)
            self._append(key, due, **{TIMER_DELETE_KEY: name})
            self.timers.schedule.recall(self.timers.rules.slot_of(due), name)
            self.model.recalled.add(key)

    def set_back(self, by_ms: int) -> None:
        """Set the clock back: what is due beyond the window may need further steps."""
        self.now -= by_ms
        far = [key for key, due in self.model.due.items() if due - self.now > 700]
        self.model.stepped.update(dict.fromkeys(far, 9))

    async def pump(self) -> None:
        """Run the tasks' work until none has any, in any order."""
        kept = self.timers
        assert kept is not None
        topics = SimpleNamespace(find=lambda topic: object())
        deliver = LocalTimerDelivery(kept, topics, Statistics(lambda: self.now))  # type: ignore[arg-type]
        await kept.open_some()
        busy = True
        while busy:
            busy = not kept.caught_up.is_set()
            for work in self.choose.sample(("enqueue", "open", "deliver"), 3):
                if work == "enqueue":
                    busy |= await kept.enqueue_some() is not None
                elif work == "open":
                    busy |= await kept.open_some()
                elif kept.caught_up.is_set():
                    busy |= await deliver.deliver_some() == 0.0
        await self.check()

    async def save(self) -> None:
        assert self.timers is not None
        await self.timers.store.flusher.flush()
        await self.timers.save(wheel=self.choose.random() < 0.5)
        self.model.unsaved.clear()

    async def check(self) -> None:
        assert self.timers is not None
        model, store = self.model, self.timers.store
        while store.max_offset(TOPIC, 0) > model.seen:
            found = await store.get_cold(TOPIC, 0, model.seen, messages_max=32, bytes_max=1 << 20)
            for message in decode_records(b"".join(found.chunks)):
                key = message.body.decode()
                assert key not in model.recalled, f"{key} came although it was recalled"
                assert self.now >= model.due[key], f"{key} came early"
                model.delivered[key] += 1
                if model.delivered[key] > 1:
                    assert model.may_repeat[key] > 0, f"{key} came again"
                    model.may_repeat[key] -= 1
                model.unsaved.add(key)
                model.seen = message.queue_offset + 1
        lost = [
            key
            for key, due in model.due.items()
            if due <= self.now and key not in model.recalled and not model.delivered[key]
        ]
        assert lost == [], f"{lost} lost"


async def history(seed: int, folder: Path, clock_jumps: bool = True) -> None:
    """Play a random history. Raises: AssertionError."""
    world = World(folder, random.Random(seed))
    choose = world.choose
    for _ in range(choose.randint(1, 4)):
        crash = choose.random() < 0.5
        async with world.running(crash=crash):
            await world.pump()
            for _ in range(choose.randint(5, STEPS)):
                step = choose.random()
                if step < 0.4:
                    world.send()
                elif step < 0.5:
                    await world.pump()  # what was sent is in the wheel
                    world.recall()
                elif step < 0.9:
                    world.now += choose.choice((1, 30, 100, 350, 2_000))
                    await world.pump()
                elif step < 0.95 or not clock_jumps:
                    await world.save()
                else:
                    world.set_back(choose.choice((10, 300, 3_000)))
            await world.pump()
        if crash:
            world.model.may_repeat.update(world.model.unsaved)
            world.model.may_repeat.update(world.model.stepped)
        world.now += choose.choice((0, 50, 500, 5_000))
        if clock_jumps and choose.random() < 0.3:
            world.set_back(choose.choice((60, 900, 6_000)))
    async with world.running(crash=True):
        while world.now <= max(world.model.due.values(), default=0):
            world.now += 1_000
            await world.pump()


SEEDS = range(36)


@pytest.mark.parametrize("first", range(0, len(SEEDS), 12))
async def test_no_message_is_early_lost_or_twice(first: int, tmp_path: Path) -> None:
    for seed in SEEDS[first : first + 12]:
        await history(seed, tmp_path / str(seed))


def _early(patch: pytest.MonkeyPatch) -> None:
    due_of = TimerRules.due_of
    patch.setattr(TimerRules, "due_of", lambda *each: due_of(*each) - 1)


def _repeats(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimerSchedule, "delivered", lambda self, position, record: False)


def _forgets_recalls(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Timers, deletes: object) -> None:
        await trio.lowlevel.checkpoint()

    patch.setattr(timers.Timers, "_load_recalls", nothing)


def _hurries(patch: pytest.MonkeyPatch) -> None:
    """Progress past what is still to be delivered."""

    def advance(self: TimerSchedule, now_ms: int) -> int:
        self.read_ms = max(self.read_ms, self.open_ms - self.rules.precision_ms)
        return self.read_ms

    patch.setattr(TimerSchedule, "advance", advance)


def _starts_before_late_messages(patch: pytest.MonkeyPatch) -> None:
    """Read the slots from the own one of a message that came too late on, which waits in a later
    slot: the time up to which all is delivered passes it unread.
    """
    start = TimerSchedule.start

    def early(self: TimerSchedule, now_ms: int) -> None:
        self.read_ms = self.passed_ms or self.read_ms
        start(self, now_ms)

    patch.setattr(TimerSchedule, "start", early)


def _forgets_bounds(patch: pytest.MonkeyPatch) -> None:
    """Keep only what is known since the clock was set back."""
    note = TimerSchedule.note_delivered

    def newest(self: TimerSchedule, now_ms: int, log_end: int) -> None:
        note(self, now_ms, log_end)
        del self.bounds[:-1]

    patch.setattr(TimerSchedule, "note_delivered", newest)


def _adds_unnoted(patch: pytest.MonkeyPatch) -> None:
    """Add records without a note of what was delivered before."""
    enqueue = timers.Timers.enqueue_some

    async def unnoted(self: Timers) -> float | None:
        with pytest.MonkeyPatch.context() as during:
            during.setattr(TimerSchedule, "note_delivered", lambda *each: None)
            return await enqueue(self)

    patch.setattr(timers.Timers, "enqueue_some", unnoted)


@pytest.mark.parametrize(
    "broken",
    [
        _early,
        _repeats,
        _forgets_recalls,
        _hurries,
        _starts_before_late_messages,
        _forgets_bounds,
        _adds_unnoted,
    ],
    ids=lambda f: f.__name__,
)
async def test_broken_timers_are_found(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)

    async def all_seeds() -> None:
        with tempfile.TemporaryDirectory() as folder:
            for seed in SEEDS:
                await history(seed, Path(folder) / str(seed))

    with pytest.raises(AssertionError):
        await all_seeds()


async def test_files_that_java_used_are_read_again(tmp_path: Path) -> None:
    """Without our mark the timer log is searched for its end, and slots are delivered again from
    the second that Java had reached.
    """
    world = World(tmp_path, random.Random(1))
    async with world.running(crash=False):
        await world.pump()
        for _ in range(50):
            world.send()
        await world.pump()
    with (tmp_path / "config" / "timercheck").open("r+b") as file:
        file.seek(MARK_POSITION)
        file.write(bytes(8))
    (tmp_path / "timerwheel").unlink()
    world.model.may_repeat.update(world.model.delivered.keys())
    async with world.running(crash=True):
        for _ in range(8):
            world.now += 1_000
            await world.pump()
    assert set(world.model.delivered) == set(world.model.due)


async def test_a_slave_takes_the_steps_of_its_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It puts messages of a long time into its wheel at once. One in an earlier slot than on the
    master would be left out as done while the master has its step before it.
    """
    slots: dict[bool, list[int]] = {False: [], True: []}
    add = TimerFiles.add
    for slave, found in slots.items():

        def note(self: TimerFiles, places: Sequence[TimerPlace], write_ms: int) -> None:
            found.extend(place.slot_ms for place in places)  # noqa: B023 - used in this round
            add(self, places, write_ms)

        monkeypatch.setattr(TimerFiles, "add", note)
        world = World(tmp_path / str(slave), random.Random(1))
        async with world.running(crash=True):
            kept = world.timers
            assert kept is not None
            await kept.open_some()
            kept.slave = slave
            for number in range(4):
                world._append(f"m{number}", world.now + 2_500)
                world.now += 130
                if not slave:
                    await kept.enqueue_some()
            if slave:
                kept.follow(TimerCheckPoint(0, 0, 4, 4))
                await kept.enqueue_some()
    assert slots[True] == slots[False]
    assert len(set(slots[True])) > 1


async def test_a_slave_keeps_a_message_that_came_too_late_on_its_master(tmp_path: Path) -> None:
    """The master's clock was set back: its progress goes back to the message's own slot."""
    world = World(tmp_path, random.Random(1))
    async with world.running(crash=True):
        kept = world.timers
        assert kept is not None
        kept.slave = True
        kept.follow(TimerCheckPoint(world.now + 5_000, 0, 0, 0))
        for number in range(2):
            world._append(f"m{number}", world.now + 500 + number * 1_000)
        kept.follow(TimerCheckPoint(world.now + 1_000, 0, 2, 2))
        await kept.enqueue_some()
        assert kept.queue_offset == 2
        assert kept.enqueued == 1
        read_ms = kept.rules.floor(world.now + 5_000)
        slot = kept.files.wheel.find(read_ms)
        assert slot is not None
        assert slot.messages == 1
        assert kept.check_point().last_read_ms == kept.rules.floor(world.now + 1_000)


async def test_a_slot_whose_reading_is_cancelled_does_not_count_as_delivered(
    tmp_path: Path,
) -> None:
    """The broker is stopped while it reads what is overdue."""
    world = World(tmp_path, random.Random(1))
    async with world.running(crash=False):
        await world.pump()
        for _ in range(20):
            world.send()
        await world.pump()
    world.now += 10_000
    for _ in range(2):
        async with world.running(crash=False):
            kept = world.timers
            assert kept is not None
            with trio.CancelScope() as scope:
                scope.cancel()
                await kept.open_some()
            assert scope.cancelled_caught
            await kept.enqueue_some()
            await world.save()
    async with world.running(crash=True):
        await world.pump()
    assert set(world.model.delivered) == set(world.model.due)


async def test_a_slave_that_ends_its_duty_tells_how_far_it_delivered(tmp_path: Path) -> None:
    world = World(tmp_path, random.Random(1))
    async with world.running(crash=True):
        kept = world.timers
        assert kept is not None
        kept.slave = True
        kept.begin_acting()
        await world.pump()
        world.now += 3_000
        await world.pump()
        kept.end_acting()
        assert kept.check_point().last_read_ms == kept.rules.floor(world.now)
