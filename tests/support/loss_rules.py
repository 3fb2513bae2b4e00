"""Which tests with a foreign peer, or with Spark, count messages: ``counting_tests(path)``.

A test counts messages if an assertion of it, or of a function that it calls from its own module or
from ``tests/support``, compares a list, a set, a table or a number of bodies, ids or offsets. It
would notice a lost or repeated message, and a second try would hide it. Other tests may count, too:
the rule finds most, not all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
MESSAGES = re.compile(r"\b(body|bodies|message_ids?|msgId|queue_offset|got)\b")
PEERS = re.compile(r"pytest\.mark\.(compat|spark)\b")
COLLECTIONS = (ast.List, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp)
MAKERS = frozenset({"sorted", "Counter", "set", "list", "dict", "len", "range"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def functions(path: Path) -> dict[str, tuple[Path, Function]]:
    """The functions of a module, and those that it imports from ``tests/support``, by name."""
    found: dict[str, tuple[Path, Function]] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, Function):
            found[node.name] = path, node
        elif isinstance(node, ast.ImportFrom) and (SUPPORT / f"{node.module}.py").exists():
            theirs = functions(SUPPORT / f"{node.module}.py")
            found |= {
                alias.name: theirs[alias.name] for alias in node.names if alias.name in theirs
            }
    return found


def reached(path: Path, name: str, seen: set[Function]) -> Iterator[Function]:
    """Yield a function and all that it calls or hands over, each once; no fixtures."""
    if name not in functions(path):
        return
    module, function = functions(path)[name]
    if function in seen or any("fixture" in ast.unparse(each) for each in function.decorator_list):
        return
    seen.add(function)
    yield function
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield from reached(module, node.id, seen)


def is_collection(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return is_collection(node.left) or is_collection(node.right)
    if isinstance(node, ast.Await):
        return is_collection(node.value)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in MAKERS
    return isinstance(node, COLLECTIONS)


def counts(function: Function) -> bool:
    """Return whether an assertion of a function compares a collection of messages."""
    return any(
        is_collection(side)
        for node in ast.walk(function)
        if isinstance(node, ast.Assert)
        for compared in ast.walk(node.test)
        if isinstance(compared, ast.Compare) and MESSAGES.search(ast.unparse(compared))
        for side in (compared.left, *compared.comparators)
    )


def marks(node: ast.AST) -> set[str]:
    """The names after ``pytest.mark.`` in decorators, or in a module's ``pytestmark``."""
    return set(re.findall(r"pytest\.mark\.(\w+)", ast.unparse(node)))


def counting_tests(path: Path) -> dict[str, bool]:
    """Return each test of a module that has a peer and counts messages: whether it is ``loss``."""
    text = path.read_text()
    if not PEERS.search(text):
        return {}
    tree = ast.parse(text)
    of_all: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node.targets[0]):
            of_all |= marks(node.value)
    found = {}
    for node in tree.body:
        if isinstance(node, Function) and node.name.startswith("test_"):
            own = of_all.union(*map(marks, node.decorator_list))
            if own & {"compat", "spark"} and any(map(counts, reached(path, node.name, set()))):
                found[node.name] = "loss" in own
    return found
