"""Every class, alias and error that a public signature names can be imported from its package."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import attrs
import pytest

import triomq
from triomq import aio, client, sync, testing

MADE_BY_THE_SDK = {"LeasedMessage", "OnceHandler", "OnceTransaction", "ReceivedMessage"}
MADE_BY_THE_SDK |= {"InProcessCluster", "Simulation", "Transaction"}
"""Classes that programs get and do not call."""
SYSTEM = "triomq.remoting.simulated."
"""The simulated system, of which programs use what ``docs/testing.md`` lists."""
INTERNAL = {"ReceivedMessage": {"owner"}, "Probes.__init__": {"clients"}}
OF_THE_WIRE = "triomq.remoting.protocol."
"""Modules whose classes have more methods than a program of the SDK needs."""
packages = pytest.mark.parametrize(
    "package", [triomq, sync, aio, testing], ids=lambda package: package.__name__
)


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Return what a class offers, by name: its functions, and itself for its fields."""
    if not kind.__module__.startswith("triomq.") or kind.__module__.startswith(SYSTEM):
        return
    yield kind.__name__, kind
    if kind.__module__.startswith(OF_THE_WIRE):
        return
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        function = value.fget if isinstance(value, property) else value
        function = getattr(function, "__func__", function)
        called = name == "__init__" and not (attrs.has(kind) or kind.__name__ in MADE_BY_THE_SDK)
        if isinstance(function, FunctionType) and (called or name[0] != "_"):
            yield f"{kind.__name__}.{name}", function


def public(package: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in package.__all__:
        value = getattr(package, name)
        if inspect.isclass(value):
            yield from members(value)
        elif inspect.isfunction(value):
            yield name, value


def in_annotation(annotation: object) -> Iterator[str]:
    if isinstance(annotation, str):
        for node in ast.walk(ast.parse(annotation.lstrip("*"), mode="eval")):
            if isinstance(node, ast.Name):
                yield node.id


def is_standard(name: str, value: object) -> bool:
    """Return whether Python, or Trio, has this name."""
    if hasattr(builtins, name) or isinstance(
        value, ModuleType | typing.TypeVar | typing.ParamSpec | typing.TypeVarTuple
    ):
        return True
    home = getattr(value, "__module__", "")
    found = getattr(sys.modules.get(home), name, None)
    return home.split(".")[0] in {*sys.stdlib_module_names, "trio"} and found is value


@packages
def test_signatures_name_only_what_the_package_has(package: ModuleType) -> None:
    offered = {*package.__all__, *(triomq.__all__ if package is testing else ())}
    missing: dict[str, list[str]] = {}
    count = 0
    for owner, value in public(package):
        typing.get_type_hints(value)
        names = vars(sys.modules[value.__module__])
        for field, annotation in inspect.get_annotations(value).items():
            if field[0] == "_" or field in INTERNAL.get(owner, ()):
                continue
            for name in in_annotation(annotation):
                count += 1
                if not (name in offered or is_standard(name, names.get(name))):
                    missing.setdefault(name, []).append(owner)
    assert missing == {}
    assert count > 20


@packages
def test_so_do_the_lists_of_errors(package: ModuleType) -> None:
    missing = {
        (owner, name)
        for owner, value in public(package)
        for raised in re.findall(r"Raises: ([^.]*)", inspect.getdoc(value) or "")
        for name in re.findall(r"\b[A-Z]\w+[a-z]\w+\b(?!-)", raised)
        if not (hasattr(triomq, name) or hasattr(builtins, name) or name == "None")
    }
    assert missing == set()


@packages
def test_dir_shows_what_is_there(package: ModuleType) -> None:
    if package is not testing:  # pytest would load all that it lists
        interfaces = {"aio", "sync", "testing"} if package is triomq else set()
        assert set(dir(package)) == {*package.__all__, *interfaces}
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="Prodcer"):
        _ = package.Prodcer


def test_the_three_interfaces_have_the_same_names() -> None:
    assert sync.__all__ == aio.__all__ == client.__all__
    assert sync.Producer is not aio.Producer is not triomq.Producer
    assert sync.ProducerSettings is aio.ProducerSettings is triomq.ProducerSettings


def test_one_import_is_enough() -> None:
    program = """
import sys, triomq
assert not {"trio", "asyncio", "triomq.aio"} & set(sys.modules)
print(triomq.aio.Producer, triomq.sync.Sql, triomq.testing.local_cluster)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert "triomq.aio.producer.Producer" in done.stdout
