"""The guide's blocks are parts of the examples that they name, and the examples are run by other tests."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent.parent
BLOCK = re.compile(r"<!-- (examples/\w+\.py) -->\n```python\n(.*?)```", re.DOTALL)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def is_part_of(block: str, whole: str) -> bool:
    """Whether the block's lines stand in the file one after the other, indented by whatever."""
    wanted, found = lines(textwrap.dedent(block)), lines(whole)
    return any(found[start : start + len(wanted)] == wanted for start in range(len(found)))


@pytest.mark.parametrize("page", ["sdk.md", "concepts.md"])
def test_blocks_are_parts_of_examples(page: str) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text())
    assert len(blocks) >= 4
    wrong = [(name, block) for name, block in blocks if not is_part_of(block, (ROOT / name).read_text())]
    assert wrong == []


def test_the_check_can_fail() -> None:
    assert is_part_of("b = 2\nc = 3\n", "if True:\n    a = 1\n    b = 2\n\n    c = 3\n")
    assert not is_part_of("b = 2\nd = 3\n", "a = 1\nb = 2\nc = 3\n")
