"""Compare the numbers: of pandas from the file, of the consumers, of Spark, and of the brokers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import pandas as pd

CELL = ["carrier", "month"]
NUMBERS = ["flights", "departed", "delay_minutes"]
MESSAGE = ["broker", "queue", "offset"]


@attrs.frozen
class Check:
    """One number that must be right."""

    what: str
    found: int
    wanted: int

    @property
    def good(self) -> bool:
        return self.found == self.wanted


def truth(file: Path, rows: int | None) -> pd.DataFrame:
    """Return flights, departed flights and minutes of delay per carrier and month, from the file
    itself.
    """
    flights = pd.read_csv(file, usecols=[*CELL, "dep_delay"], nrows=rows)
    return cells(flights)


def cells(flights: pd.DataFrame) -> pd.DataFrame:
    """Return the three numbers per carrier and month, as whole numbers that compare exactly."""
    groups = flights.groupby(CELL)["dep_delay"]
    return pd.DataFrame(
        {
            "flights": groups.size(),
            "departed": groups.count(),
            "delay_minutes": groups.sum().astype("int64"),
        }
    ).sort_index()


def consumed(files: Sequence[Path]) -> tuple[pd.DataFrame, int, int]:
    """Return the consumers' numbers, their count of messages, and that of repeated deliveries.

    Delivery is at least once, so a message whose queue moves from one consumer to the other may
    come twice. Such a message is recognised by its place in the queue, so a message that was *sent*
    twice still counts twice.
    """
    tables = [
        pd.read_csv(file, names=[*MESSAGE, *CELL, "dep_delay"])
        for file in files
        if file.exists() and file.stat().st_size
    ]
    if not tables:
        return cells(pd.DataFrame({"carrier": [], "month": [], "dep_delay": []})), 0, 0
    deliveries = pd.concat(tables)
    messages = deliveries.drop_duplicates(MESSAGE)
    return cells(messages), len(messages), len(deliveries) - len(messages)


def streamed(file: Path) -> tuple[pd.DataFrame, int]:
    """Return Spark's numbers, and its count of messages."""
    rows = json.loads(file.read_text()) if file.exists() else []
    table = (
        pd.DataFrame(rows, columns=[*CELL, *NUMBERS])
        .fillna({"delay_minutes": 0})
        .astype(dict.fromkeys(NUMBERS, "int64"))
    )
    return table.set_index(CELL).sort_index(), int(table["flights"].sum())


def differences(wanted: pd.DataFrame, found: pd.DataFrame) -> int:
    """Return the number of cells that disagree in any number, or exist on one side only."""
    both = wanted.join(found, how="outer", lsuffix="_wanted", rsuffix="_found")
    unequal = pd.Series(False, index=both.index)
    for number in NUMBERS:
        unequal |= ~(both[f"{number}_wanted"] == both[f"{number}_found"])
    return int(unequal.sum())


def checks(
    wanted: pd.DataFrame,
    keys: int,
    sent: int,
    stored: int,
    folder: Path,
    consumers: Sequence[Path],
    lags: Mapping[str, int],
) -> list[Check]:
    """Return everything that must hold at the end."""
    total = int(wanted["flights"].sum())
    by_consumers, received, _ = consumed(consumers)
    by_spark, read = streamed(folder / "spark.json")
    return [
        Check("different keys among the flights", keys, total),
        Check("messages sent", sent, total),
        Check("messages in the brokers", stored, total),
        Check("messages received by the consumers", received, total),
        Check("messages read by Spark", read, total),
        Check(
            "carrier-months that differ, consumers to pandas", differences(wanted, by_consumers), 0
        ),
        Check("carrier-months that differ, Spark to pandas", differences(wanted, by_spark), 0),
        *(Check(f"lag of group {group}", lag, 0) for group, lag in lags.items()),
    ]


def worst_months(wanted: pd.DataFrame, count: int = 3) -> list[str]:
    """Return a taste of the result: the carriers and months with the longest mean delay.

    Only those with many flights count.
    """
    busy = wanted[wanted["departed"] >= max(1, wanted["departed"].quantile(0.25))]
    means = (busy["delay_minutes"] / busy["departed"]).sort_values(ascending=False).head(count)
    return [
        f"{carrier} in month {month}: {mean:.2f} min mean departure delay over"
        f" {wanted.loc[(carrier, month), 'departed']:,} flights"
        for (carrier, month), mean in means.items()
    ]
