"""Pipelines for tests: a spec of orders, and the messages that fit it and do not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "shop", "type": "string", "nullable": True, "metadata": {}},
        {"name": "amount", "type": "double", "nullable": True, "metadata": {}},
    ],
}
ORDERS = """
[pipeline]
name = "orders"

[source]
name_server = "{namesrv}"
topics = ["{topic}"]
options.maxOffsetsPerTrigger = "{rows_per_batch}"
options.maxRecordsPerPartition = "{rows_per_task}"

[decode]
format = "json"
schema = "orders.schema.json"

[[rules]]
name = "the amount is negative"
check = "amount >= 0"

[[rules]]
keep = "shop <> 'test'"

[[rules]]
set = {{ cents = "cast(round(amount * 100) AS bigint)" }}

[dead_letters]
{dead_letters}

[sink]
{sink}

{windows}

[run]
trigger = "{trigger}"
checkpoint = "checkpoint"
"""
HOURLY = """
[[windows]]
name = "by-second"
time = "{time}"
length = "1 second"
watermark = "1 second"
group_by = ["shop"]
totals = {{ orders = "count(*)", cents = "sum(cents)" }}
path = "totals"
"""


def orders_file(folder: Path, namesrv: str, topic: str, **parts: Any) -> Path:
    """Write the file of a pipeline and its schema; return the file.

    ``parts``: ``sink``, ``dead_letters``, ``windows`` as TOML, ``trigger``, ``rows_per_batch``,
    ``rows_per_task``.
    """
    chosen = {
        "sink": 'path = "lake"',
        "dead_letters": 'path = "dead"',
        "windows": "",
        "trigger": "available_now",
        "rows_per_batch": 1_000_000,
        "rows_per_task": 1_000_000,
        **parts,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "orders.schema.json").write_text(json.dumps(SCHEMA))
    file = folder / "orders.toml"
    file.write_text(ORDERS.format(namesrv=namesrv, topic=topic, **chosen))
    return file


def orders(numbers: Iterable[int]) -> list[bytes]:
    """Return bodies: of ten, one is not JSON, one is negative, one is of the shop ``test``."""
    return [order(number) for number in numbers]


def order(number: int) -> bytes:
    if number % 10 == 3:
        return b"{%d" % number
    shop = "test" if number % 10 == 5 else f"s{number % 3}"
    amount = -1.0 if number % 10 == 7 else number / 4
    return json.dumps({"id": number, "shop": shop, "amount": amount}).encode()


def good(numbers: Iterable[int]) -> list[int]:
    return [number for number in numbers if number % 10 not in (3, 5, 7)]
