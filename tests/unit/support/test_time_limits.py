"""A test that its time limit breaks off fails alone: the others of its process pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[2] / "support"
OPTIONS = f"""[pytest]
trio_mode = true
timeout = 100
timeout_grace = {{grace}}
addopts = -p xdist -p pytest_timeout -p pytest_trio.plugin -p time_limits -p no:cacheprovider
pythonpath = {SUPPORT}
"""
MODULE = """
import asyncio, threading, time
import pytest, trio
from hypothesis import given, strategies

short = pytest.mark.timeout(0.2)

@short
{}
async def test_passes_after_it():
    await trio.lowlevel.checkpoint()

def test_passes_after_it_with_a_loop_of_its_own():
    trio.run(trio.lowlevel.checkpoint)
"""
FAILED = re.compile(r"^(?:FAILED|ERROR) test_(\w+)\.py::test_hangs", re.MULTILINE)
BROKEN_OFF = {
    "waits": """
async def test_hangs():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
""",
    "waits_in_virtual_time": """
async def test_hangs(autojump_clock):
    await trio.sleep(10_000)
    await trio.sleep_forever()
""",
    "waits_in_a_fixture": """
async def test_hangs(endless):
    pass

@pytest.fixture
async def endless():
    await trio.sleep_forever()
""",
    "has_no_checkpoint": """
async def test_hangs():
    await trio.lowlevel.checkpoint()
    threading.Event().wait()
""",
    "gives_examples": """
@given(strategies.integers())
async def test_hangs(number):
    await trio.sleep_forever()
""",
    "runs_asyncio": """
def test_hangs():
    asyncio.run(asyncio.Event().wait())
""",
    "has_no_loop": """
def test_hangs():
    threading.Event().wait()
""",
    "catches_the_interrupt": """
def test_hangs():
    with pytest.raises(KeyboardInterrupt):
        threading.Event().wait()
""",
    "prepares": """
def test_hangs(endless):
    pass

@pytest.fixture
def endless():
    threading.Event().wait()
""",
    "cleans_up_after_a_failure": """
def test_hangs(endless):
    raise ValueError

@pytest.fixture
def endless():
    yield
    threading.Event().wait()
""",
}
ENDED_WITH_THEIR_PROCESS = {
    "is_shielded": """
async def test_hangs():
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()
""",
    "catches_each_interrupt": """
async def test_hangs():
    while True:
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass
""",
}


def play(folder: Path, tests: dict[str, str], grace: float) -> tuple[str, set[str]]:
    """Run the tests in two workers; return the output and the names of those that failed."""
    (folder / "pytest.ini").write_text(OPTIONS.format(grace=grace))
    for name, test in tests.items():
        (folder / f"test_{name}.py").write_text(MODULE.format(test))
    command = (sys.executable, "-m", "pytest", "-q", "-n", "2", "--color=no", "--tb=short")
    run = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    output = run.stdout + run.stderr
    return output, set(
        re.findall(r"^(?:FAILED|ERROR) test_(\w+)\.py::test_hangs", output, re.MULTILINE)
    )


def test_what_is_broken_off_fails_alone_and_says_where_it_stood(tmp_path: Path) -> None:
    output, failed = play(tmp_path, BROKEN_OFF, 100)
    assert failed == BROKEN_OFF.keys(), output
    assert f"{2 * len(BROKEN_OFF)} passed" in output
    assert output.count("Timeout (>0.2 s)") >= len(BROKEN_OFF)
    line = (
        (tmp_path / "test_waits.py")
        .read_text()
        .split("\n")
        .index("    async with trio.open_nursery() as nursery:")
    )
    assert f"test_waits.py:{line + 1}" in output


def test_what_goes_on_after_that_ends_its_process_and_another_takes_its_place(
    tmp_path: Path,
) -> None:
    output, failed = play(tmp_path, ENDED_WITH_THEIR_PROCESS, 0.2)
    assert failed == ENDED_WITH_THEIR_PROCESS.keys(), output
    assert f"{2 * len(ENDED_WITH_THEIR_PROCESS)} passed" in output
    assert "in test_hangs" in output, "the stack of the process that was ended"
