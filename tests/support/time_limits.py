"""The pytest plugin that breaks off a test at its time limit as Ctrl-C does.

pytest-timeout raises its error wherever the main thread is. Inside the event loop that ends
``trio.run`` without its clean-up, and every later test of the process fails with "Attempted to call
run() from inside a run()". What handles SIGINT knows at each moment how to end what runs: Trio lets
its main task raise KeyboardInterrupt, asyncio cancels its own, and plain code raises it at once.

A test that goes on all the same, ``timeout_grace`` seconds later, ends its process, with the stacks
of all threads; pytest-xdist reports it as failed and starts another worker.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import IO, NamedTuple

import pytest
import trio

_broken_off: dict[str, str] = {}
"""Test that its limit has broken off -> what is said of it."""
_stderr = pytest.StashKey[IO[str]]()


class Settings(NamedTuple):
    """Those of pytest-timeout that count here. ``timeout``: seconds."""

    timeout: float


_settings = pytest.StashKey[Settings]()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "seconds that a test may go on after it was broken off"
    parser.addini("timeout_grace", text, default="30")


def pytest_configure(config: pytest.Config) -> None:
    # What a test writes to file 2 is captured, and lost with the process.
    config.stash[_stderr] = os.fdopen(os.dup(2), "w")


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_stderr].close()


def pytest_enter_pdb() -> None:
    """Give a test no limit while someone debugs it."""
    stop_timers()


def stop_timers() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> bool:
    def interrupt(signum: int, frame: FrameType | None) -> None:
        _broken_off[item.nodeid] = f"Timeout (>{settings.timeout} s)\n{where_tasks_stand()}"
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    item.stash[_settings] = settings
    grace = float(item.config.getini("timeout_grace"))
    faulthandler.dump_traceback_later(
        settings.timeout + grace, exit=True, file=item.config.stash[_stderr]
    )
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    stop_timers()
    return True


@contextlib.contextmanager
def failing_if_broken_off(item: pytest.Item) -> Iterator[None]:
    """Let a phase of a test fail if its limit has passed meanwhile, however the phase ended."""
    cause: BaseException | None = None
    try:
        yield
    except BaseException as error:
        cause = error
        raise
    finally:
        if reason := _broken_off.pop(item.nodeid, None):
            raise pytest.fail.Exception(reason) from cause


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item):
    with failing_if_broken_off(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item):
    with failing_if_broken_off(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item):
    """Give the teardown of a failed test a limit of its own: pytest-timeout cancels the timer
    when it fails.
    """
    if _settings in item.stash and not any(signal.getitimer(signal.ITIMER_REAL)):
        pytest_timeout_set_timer(item, item.stash[_settings])
    with failing_if_broken_off(item):
        return (yield)


def where_tasks_stand() -> str:
    """Return the lines at which the tasks of this thread's event loop wait, outside of packages."""
    try:
        tasks = [trio.lowlevel.current_root_task()]
    except RuntimeError:
        return ""
    lines = []
    while task := tasks.pop() if tasks else None:
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        places = [
            f"{frame.f_code.co_filename}:{line}"
            for frame, line in task.iter_await_frames()
            if "site-packages" not in frame.f_code.co_filename
        ]
        if places:
            lines.append(f"{task.name} waits in {' > '.join(places)}")
    return "\n".join(lines)
