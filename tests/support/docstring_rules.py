"""The house rules about docstrings that a test can hold: sections are spelled in one way and stand
in one order; the grammar is in ``docs/style.md``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

SECTIONS = ("Returns", "Raises", "Checkpoint", "Source")
_START = r"(?:\A|(?<=\n)|(?<=[.:;)] ))"  # of a docstring, a line or a sentence
_SECTION = re.compile(rf"{_START}({'|'.join(SECTIONS)}):", re.MULTILINE)
_MISSPELT: dict[str, re.Pattern[str]] = {
    f"write `Returns:` or an imperative: {form}": re.compile(rf"{_START}{form}")
    for form in ("Returns (?=[a-z])", "Yields\\b", "Return:")
} | {
    "write `Raises:`": re.compile(rf"{_START}(?:Raises (?=[A-Z`])|Raise:|Errors?:|Throws\b)"),
    "write `Checkpoint: always`, `maybe` or `never`": re.compile(
        rf"{_START}Checkpoint:(?!\s(?:always|maybe|never)\b)|{_START}Checkpoints:"
        rf"|{_START}(?:No|no) checkpoint(?=[.,;:]|$)|\b[Aa]tomic: |{_START}Atomic\."
    ),
    "parameters stand in sentences, or as ``name``: …": re.compile(
        rf"{_START}(?:Args|Arguments|Parameters|Params):"
    ),
    "write `Source:`": re.compile(rf"{_START}Sources?:(?<=Sources:)"),
}


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text, without indentation, of every docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def section_errors(text: str) -> Iterator[str]:
    """Yield what is wrong with the sections of a docstring."""
    yield from (error for error, pattern in _MISSPELT.items() if pattern.search(text))
    found = _SECTION.findall(text)
    if found != sorted(found, key=SECTIONS.index) or len(set(found)) < len(found):
        yield f"sections in the order {', '.join(SECTIONS)}, each once: {', '.join(found)}"


def shared_class_names(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the classes that several modules define at their top level: name to modules."""
    modules: dict[str, list[str]] = {}
    for module, tree in sorted(trees.items()):
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, []).append(module)
    return {name: found for name, found in sorted(modules.items()) if len(found) > 1}
