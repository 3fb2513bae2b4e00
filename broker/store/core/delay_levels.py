"""Delay levels: the delays that the DELAY property of a message stands for (messageDelayLevel).

Level 1 is the first delay.
"""

from __future__ import annotations

from collections.abc import Iterable

from triomq.remoting.core.settings import Kind

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DELAY_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays in ms of level 1, 2, 3, …: ``"1s 5s 2h"`` -> (1000, 5000, 7_200_000).

    Raises: ValueError, which names the wrong word.
    """
    levels = []
    for word in text.split():
        unit = DELAY_UNITS_MS.get(word[-1])
        if unit is None or not word[:-1].isdigit():
            raise ValueError(
                f"{word!r} is not a number followed by s, m, h or d; write for example 1s 5s 1m 2h"
            )
        levels.append(int(word[:-1]) * unit)
    return tuple(levels)


def format_delay_levels(levels_ms: Iterable[int]) -> str:
    """Return the text of levels, each in its largest exact unit: (1000, 60_000) -> ``"1s 1m"``."""
    units = sorted(DELAY_UNITS_MS.items(), key=lambda unit: -unit[1])
    return " ".join(
        next(f"{level // size}{unit}" for unit, size in units if level % size == 0)
        for level in levels_ms
    )


DELAY_LEVELS: Kind[tuple[int, ...]] = Kind(
    "times such as 10s, 5m, 2h or 1d, separated by spaces", parse_delay_levels, format_delay_levels
)
