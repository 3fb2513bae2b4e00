"""The progress of the demo: bars on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

PLAIN_SECONDS = 5.0
BAR_SECONDS = 0.2

Counters = Mapping[str, Callable[[], int]]
console = Console(highlight=False)


@asynccontextmanager
async def progress(total: int, counters: Counters) -> AsyncIterator[None]:
    """Show ``counters`` (name → function that counts up to ``total``) while the block runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(show_bars if console.is_terminal else show_lines, total, counters)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()


async def show_bars(total: int, counters: Counters) -> None:
    columns = (
        TextColumn("{task.description:>14}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks = {name: bars.add_task(name, total=total) for name in counters}
        try:
            while True:
                for name, count in counters.items():
                    bars.update(tasks[name], completed=count())
                await trio.sleep(BAR_SECONDS)
        finally:
            for name, count in counters.items():
                bars.update(tasks[name], completed=count())


async def show_lines(total: int, counters: Counters) -> None:
    begin = time.monotonic()
    while True:
        counts = "   ".join(f"{name} {count():,}" for name, count in counters.items())
        say(f"{time.monotonic() - begin:5.0f} s   {counts}   of {total:,}")
        await trio.sleep(PLAIN_SECONDS)


def say(text: str = "") -> None:
    """Print a line."""
    console.print(text, markup=False, soft_wrap=True)
    sys.stdout.flush()
