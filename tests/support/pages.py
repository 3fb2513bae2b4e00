"""The fenced blocks of README and docs, so that tests can run what readers will copy."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"(?:^<!-- (?P<label>[^\n]*?) -->\n"
    r"|^\[(?P<example>examples/\w+\.py)\]\([^)\n]*\):\n\n)?"
    r"^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LABEL = re.compile(r"examples/\w+\.py")


@attrs.frozen
class Block:
    """One fenced block: the page, what stands after the backticks, the lines, and the example that
    a link or a comment above it names.
    """

    page: str
    info: str
    text: str
    label: str | None

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command line of a shell block, comments left out; of a console block
        those after ``$ ``.
        """
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.info == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found = [
            shlex.split(part)
            for line in lines
            for part in re.sub(r"(^|\s)#.*", "", line).split(" && ")
        ]
        return [words for words in found if words]


def pages() -> list[Path]:
    return sorted(
        [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    )


def blocks(*kinds: str) -> list[Block]:
    """All blocks of these kinds (the first word after the backticks), page by page."""
    return [
        Block(
            path.relative_to(ROOT).as_posix(),
            match["info"],
            match["text"],
            match["label"] or match["example"],
        )
        for path in pages()
        for match in BLOCK.finditer(path.read_text())
        if match["info"].partition(" ")[0] in kinds
    ]


def one(page: str, first: str, kind: str = "python") -> str:
    """The text of the block of a page that holds ``first``, which must be only one."""
    (block,) = [block for block in blocks(kind) if block.page == page and first in block.text]
    return block.text
