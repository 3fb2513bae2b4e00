"""The three interfaces have the same names, parameters, defaults, annotations and attributes.

The generated classes are current.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import triomq
from triomq import aio, sync
from triomq.aio import calls
from triomq.client.core.portal import in_loop

ROOT = Path(__file__).parents[4]
NAMES = (
    *("Admin", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer"),
    *("LeasedMessage", "ReceivedMessage", "Transaction"),
)
TRIO_ONLY = {
    "Admin": {"for_each"},  # calls the caller's own async function
    "PullConsumer": {"give_back"},  # for the other interfaces
    "SimpleConsumer": {"give_back"},  # for the other interfaces
    "Transaction": {"abandon"},  # for the other interfaces
    "ReceivedMessage": {"ack_nowait"},  # saves a checkpoint; the others wait for a thread anyway
}
OTHERS_ONLY = {"start", "stop"}
"""in place of the block, for notebooks"""
EXAMPLES: dict[str, dict[str, Any]] = {
    "Admin": {"timeout_seconds": 2.0},
    "Producer": {"group": "g"},
    "PullConsumer": {"group": "g", "auto_commit": False},
    "PushConsumer": {"group": "g", "subscriptions": "T", "ordered": True, "mode": "pop"},
    "SimpleConsumer": {"group": "g", "subscriptions": "T", "invisible": 20},
}
both = pytest.mark.parametrize("interface", [sync, aio], ids=["sync", "aio"])


def methods(kind: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def properties(kind: type) -> dict[str, str]:
    """Return name and annotation of each public property."""
    found = inspect.getmembers(kind, lambda value: isinstance(value, property))
    return {
        name: value.fget.__annotations__["return"]
        for name, value in found
        if not name.startswith("_")
    }


def expected(function: Any, interface: ModuleType) -> inspect.Signature:
    """Return the signature that a Trio function has in another interface."""
    signature = inspect.signature(function)
    if interface is aio:
        return signature
    parameters = list(signature.parameters.values())
    if inspect.iscoroutinefunction(function) and "timeout" not in signature.parameters:
        parameters.append(
            inspect.Parameter(
                "timeout", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="float | None"
            )
        )
    returns = signature.return_annotation.replace("AsyncIterator", "Iterator")
    return signature.replace(parameters=parameters, return_annotation=returns)


@both
@pytest.mark.parametrize("name", NAMES)
def test_methods_have_the_same_signatures(interface: ModuleType, name: str) -> None:
    original, mirror = methods(getattr(triomq, name)), methods(getattr(interface, name))
    assert mirror.keys() - OTHERS_ONLY == original.keys() - TRIO_ONLY.get(name, set())
    for method in original.keys() & mirror.keys():
        assert inspect.signature(mirror[method]) == expected(original[method], interface), method
        assert mirror[method].__doc__, method
        returns = inspect.signature(original[method]).return_annotation
        opens = "AsyncIterator" in returns or returns == "Transaction"
        inherited = mirror[method] is original[method]  # of `MessageView`
        assert inspect.iscoroutinefunction(mirror[method]) is (
            interface is aio and not opens and not inherited
        ), method


@both
@pytest.mark.parametrize("name", NAMES)
def test_objects_have_the_same_properties(interface: ModuleType, name: str) -> None:
    original, mirror = properties(getattr(triomq, name)), properties(getattr(interface, name))
    for attribute, annotation in original.items():
        assert mirror[attribute] == annotation, attribute
    if name in EXAMPLES:
        trio_object, other = (
            getattr(module, name)("a:1", **EXAMPLES[name]) for module in (triomq, interface)
        )
        attributes = {attribute for attribute in vars(trio_object) if not attribute.startswith("_")}
        assert mirror.keys() == original.keys() | attributes
        for attribute in attributes:
            assert getattr(other, attribute) == getattr(trio_object, attribute)
        assert repr(other) == repr(trio_object)
    else:
        assert mirror.keys() == original.keys()


@both
@pytest.mark.parametrize("name", EXAMPLES)
def test_constructors_have_the_same_parameters(interface: ModuleType, name: str) -> None:
    assert inspect.signature(getattr(interface, name)) == inspect.signature(getattr(triomq, name))


@pytest.mark.parametrize("name", NAMES[:5])
async def test_asyncio_runs_plain_methods_without_a_task(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The portal calls the function behind ``in_loop`` at once; a task for it is twice the cost."""
    functions: list[object] = []

    async def note(portal: object, function: object, *args: object) -> None:
        functions.append(function)

    monkeypatch.setattr(calls, "call_in_loop", note)
    original, mirror = methods(getattr(triomq, name)), methods(getattr(aio, name))
    for method in original.keys() & mirror.keys():
        if mirror[method].__code__.co_name == "call":  # made by `awaited` or `called`
            await mirror[method](SimpleNamespace(_portal=None, _target=None))
            waits = inspect.iscoroutinefunction(original[method])
            assert functions.pop() is (original[method] if waits else in_loop), method


@both
def test_a_message_of_any_interface_is_a_view(interface: ModuleType) -> None:
    """A type checker then accepts any of them for a ``MessageView``."""
    assert issubclass(interface.ReceivedMessage, triomq.MessageView)
    assert issubclass(triomq.ReceivedMessage, triomq.MessageView)
    assert interface.MessageView is triomq.MessageView


def generated() -> dict[str, str]:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import generate_facades
    finally:
        del sys.path[0]
    return generate_facades.files()


@pytest.mark.parametrize(
    ("name", "text"), generated().items(), ids=lambda value: value if value.endswith(".py") else ""
)
def test_a_generated_module_is_current(name: str, text: str) -> None:
    assert (ROOT / "triomq" / name).read_text() == text, "run `make docs`"
