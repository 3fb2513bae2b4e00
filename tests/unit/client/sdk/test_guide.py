"""The blocks of the guide are parts of the examples that they name; other tests run those."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent.parent.parent
BLOCK = re.compile(
    r"^\[(examples/\w+\.py)\]\(.*?\):\n\n```python\n(.*?)```", re.DOTALL | re.MULTILINE
)


LAYOUT = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def words(text: str) -> list[str]:
    """Return the tokens of a piece of Python, which may end within brackets, without its layout.

    ``ruff format`` breaks the lines of a block and of the deeper indented example differently.
    """
    found: list[str] = []
    with contextlib.suppress(tokenize.TokenError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in LAYOUT:
                if token.string in (")", "]", "}") and found[-1] == ",":
                    found.pop()
                found.append(token.string)
    return found


def is_part_of(block: str, whole: str) -> bool:
    """Return whether the tokens of the block are in the file, one after the other."""
    wanted, found = words(textwrap.dedent(block)), words(whole)
    return any(found[start : start + len(wanted)] == wanted for start in range(len(found)))


DOCS = ROOT / "docs"
PAGES = [
    *(DOCS / f"{name}.md" for name in ("index", "tutorial", "sdk", "concepts")),
    *sorted((DOCS / "sdk").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_are_parts_of_examples(page: Path) -> None:
    blocks = BLOCK.findall(page.read_text())
    assert blocks or page.stem == "differences"
    wrong = [
        (name, block) for name, block in blocks if not is_part_of(block, (ROOT / name).read_text())
    ]
    assert wrong == []


def test_the_check_can_fail() -> None:
    assert is_part_of("b = 2\nc = 3\n", "if True:\n    a = 1\n    b = 2\n\n    c = 3\n")
    assert is_part_of("f(a, b)\ng(1,\n", "f(\n    a,\n    b,\n)\ng(1, 2)\n")
    assert not is_part_of("f(a, b)\n", "f(a)\nf(b)\n")
    assert not is_part_of("b = 2\nd = 3\n", "a = 1\nb = 2\nc = 3\n")
