"""The options of ``format("rocketmq-store")``: what is refused, and the page that lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from option_texts import meanings, table_cell

from tests.support.store_reads import BROKER, store_reader
from triomq.client.spark.errors import OptionError
from triomq.client.spark.option_table import Option
from triomq.client.spark.options import SourceOptions
from triomq.client.spark.store.store_options import STORE_OPTIONS, StoreOptions, parse_store_options
from triomq.client.spark.store.store_planning import plan_store

DOCS = Path(__file__).resolve().parents[4] / "docs" / "spark.md"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store without messages."""
    (tmp_path / "consumequeue" / "Orders" / "0").mkdir(parents=True)
    (tmp_path / "commitlog").mkdir()
    return tmp_path


def test_the_broker_s_name(root: Path) -> None:
    options = parse_store_options({"path": str(root), "subscribe": "Orders"})
    with pytest.raises(OptionError, match="'brokerName' is missing"):
        plan_store(options)
    (root / "brokerIdentity").write_text("cluster#broker-a#0")
    assert {queue.broker for queue in plan_store(options).ends} == {BROKER}
    (root / "brokerIdentity").write_text("cluster#broker-b#0")
    with pytest.raises(OptionError, match="'broker-b'"):
        store_reader(root, subscribe="Orders").partitions()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "exactly one of"),
        ({"subscribe": "A", "subscribePattern": "B"}, "exactly one of"),
        ({"subscribe": "A", "nameServer": "a:9876"}, "read without a cluster"),
        ({"subscribe": "A", "startingOffsets": "latest"}, "from earliest or from offsets"),
        ({"subscribe": "A", "startingOffsets": "group"}, "from earliest or from offsets"),
        ({"subscribe": "A", "maxOffsetsPerTrigger": "5"}, "unknown option"),
        ({"subscribe": "A", "partitionBytes": "1"}, "it must be a size"),
    ],
)
def test_options_are_checked(root: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        store_reader(root, **options)


def test_a_path_is_needed() -> None:
    reader: Any = store_reader
    with pytest.raises(OptionError, match="it is empty"):
        reader("", subscribe="A")


def option_row(option: Option) -> str:
    default = f"`{option.default}`" if option.default is not None else "–"
    text = meanings(SourceOptions, StoreOptions)[option.name]
    return f"| `{option.name}` | {default} | {table_cell(text)} |"


def test_the_docs_list_every_option_as_it_is() -> None:
    """If this test fails, copy the missing rows to docs/spark.md."""
    section = DOCS.read_text().partition("\n## Reading a store\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == list(map(option_row, STORE_OPTIONS.values()))
