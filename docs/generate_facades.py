"""Write the classes of ``triomq.sync`` and ``triomq.aio`` from the signatures of ``triomq``.

Each public method, property and annotated attribute of a Trio class has a counterpart with the same
parameters, defaults and annotations. What is different by nature (lifetime, iteration, handlers,
messages) is written by hand in the base class of the generated class, and is not generated.
docs/adr/006-generated-facades.md gives the reasons.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import attrs

from triomq.client import Admin, Producer, PullConsumer, PushConsumer, SimpleConsumer

PACKAGE = Path(__file__).resolve().parent.parent / "triomq"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definitions = dict[str, list[tuple[ModuleType, ast.stmt, str]]]
"""Name → its definitions (several for an overloaded function), each with its module and its
documentation.
"""


@attrs.frozen
class Interface:
    """How the classes of one package wait."""

    name: str
    title: str
    lifetime: str
    definition: str
    call: tuple[str, str]
    """how a function of the target is called, and the first argument of the call"""
    wrappers: tuple[str, str] | None = None
    """functions that make a method of an async and of a plain one with the same signature"""
    timeout: bool = False
    """whether methods that wait take a ``timeout``; one of their own limits the call, too"""


SYNC = Interface(
    "sync",
    "A blocking ``triomq.{}``.",
    "lifetime.BlockingLifetime",
    "def",
    ("self._portal.call", "timeout"),
    timeout=True,
)
AIO = Interface(
    "aio",
    "A ``triomq.{}`` for asyncio.",
    "calls.AsyncioLifetime",
    "async def",
    ("await call_in_loop", "self._portal"),
    wrappers=("awaited", "called"),
)

CLASSES: dict[type, tuple[str, str | None]] = {
    Admin: ("admin", None),
    Producer: ("producer", "transactions.ProducerBase"),
    PullConsumer: ("pull_consumer", "consuming.PullConsumerBase"),
    PushConsumer: ("push_consumer", "consuming.PushConsumerBase"),
    SimpleConsumer: ("simple_consumer", "receiving.SimpleConsumerBase"),
}
"""Class → its module in each package, and its base class there (None: the lifetime)."""
NOT_OFFERED = {"for_each", "give_back"}
"""``for_each`` calls the caller's own async function, which cannot run in the object's loop;
``give_back`` serves the interfaces themselves.
"""
WRAPPED = {
    "handler": "None if handler is None else self._handling(handler)",
    "check": "None if check is None else self._checking(check)",
    "batch_handler": "None if batch_handler is None else self._handling_batches(batch_handler)",
    "messages: Iterable[Message]": "tuple(messages)",  # iterated here, in the caller's thread
}
"""What is handed on instead of a parameter of this name, or of this name and annotation."""
OWN_TYPES = {
    **dict.fromkeys(("BatchHandler", "Handler", "ReceivedMessage"), "received"),
    "LeasedMessage": "receiving",
    "Transaction": "transactions",
}
"""Name of a type that each package has of its own → its module there."""
BLOCKS = {"Transaction"}
"""Classes of blocks that plain methods return."""


def files() -> dict[str, str]:
    """Return the text of every generated file, by its path below ``triomq``."""
    return {
        f"{interface.name}/{module}.py": Facade(
            interface, kind, module, base or interface.lifetime
        ).text()
        for kind, (module, base) in CLASSES.items()
        for interface in (SYNC, AIO)
    }


class Facade:
    """The counterpart of one Trio class in one interface."""

    def __init__(self, interface: Interface, kind: type, module: str, base: str) -> None:
        self.interface = interface
        self.kind = kind
        base_module, self.base = base.split(".")
        self.base_module = f"triomq.{interface.name}.{base_module}"
        self.generic = base == interface.lifetime
        self.imports: set[tuple[str, str]] = {("triomq", "client"), (self.base_module, self.base)}
        self.handwritten = _defined(PACKAGE / interface.name / f"{base_module}.py", self.base)

    def text(self) -> str:
        """Return the module."""
        name = self.kind.__name__
        base = f"{self.base}[client.{name}]" if self.generic else self.base
        title = self.interface.title.format(name)
        members = sorted(self._members(), key=lambda member: len(member) == 1)
        body = "\n".join(
            line for member in members for line in (member if len(member) == 1 else ["", *member])
        )
        source = self.kind.__module__.removeprefix("triomq.").replace(".", "/")
        return _laid_out(
            "\n".join(
                [
                    f'"""{title}"""',
                    "",
                    (
                        f"# Written by `make docs` from the signatures in {source}.py: change them"
                        " instead."
                    ),
                    "",
                    "from __future__ import annotations",
                    "",
                    *_import_lines(self.imports),
                    "",
                    "",
                    f"class {name}({base}):",
                    f'    """{title}',
                    "",
                    f"    Methods have the names and parameters of ``triomq.{name}``; see there.",
                    '    """',
                    body,
                    "",
                ]
            )
        )

    def _members(self) -> Iterator[list[str]]:
        found: Definitions = {}
        for owner in reversed(self.kind.__mro__):
            if owner.__module__.startswith("triomq.client.") and owner.__name__ != "Lifetime":
                found |= _public(owner)
        for name, definitions in sorted(found.items(), key=lambda item: item[0] != "__init__"):
            if name == "__init__" or (name not in NOT_OFFERED and name not in self.handwritten):
                for module, definition, documentation in definitions:
                    yield self._member(module, definition, documentation)

    def _member(self, module: ModuleType, definition: ast.stmt, documentation: str) -> list[str]:
        if isinstance(definition, ast.AnnAssign):
            assert isinstance(definition.target, ast.Name)
            return self._property(
                definition.target.id, self._annotation(module, definition.annotation), documentation
            )
        assert isinstance(definition, Function)
        if self.interface.wrappers is not None and self._same(definition):
            wrapper = self.interface.wrappers[not isinstance(definition, ast.AsyncFunctionDef)]
            self.imports.add((f"triomq.{self.interface.name}.calls", wrapper))
            method = f"client.{self.kind.__name__}.{definition.name}"
            return [f"    {definition.name} = {wrapper}({method})"]
        returns = self._annotation(module, definition.returns)
        decorators = {ast.unparse(decorator) for decorator in definition.decorator_list}
        if "property" in decorators:
            return self._property(definition.name, returns, documentation)
        if returns in BLOCKS:
            return self._block(module, definition, returns, documentation)
        waits = isinstance(definition, ast.AsyncFunctionDef)
        limited = any(parameter.arg == "timeout" for parameter in definition.args.kwonlyargs)
        parameters, arguments = self._parameters(
            module, definition.args, timeout=waits and self.interface.timeout and not limited
        )
        if definition.name == "__init__":
            target = f"client.{self.kind.__name__}({', '.join(arguments)})"
            return [
                f"    def __init__({', '.join(parameters)}) -> None:",
                f"        super().__init__({target})",
            ]
        head = (
            f"    {self.interface.definition} {definition.name}({', '.join(parameters)})"
            f" -> {returns}:"
        )
        if "overload" in decorators:
            self.imports.add(("typing", "overload"))
            return ["    @overload", f"{head} ..."]
        lines = [head, *self._documented(definition.name, documentation)]
        call, first = self.interface.call
        function = f"self._target.{definition.name}"
        # Overloaded: a type checker would take the first form.
        if len(_public(self.kind).get(definition.name, ())) > 1:
            self.imports |= {("collections.abc", "Awaitable"), ("collections.abc", "Callable")}
            lines.append(f"        function: Callable[..., Awaitable[{returns}]] = {function}")
            function = "function"
        called = ["None" if limited and self.interface.timeout else first, function]
        if not waits:
            self.imports.add(("triomq.client.core.portal", "in_loop"))
            called = ["None" if self.interface.timeout else first, "in_loop", function]
        if self.interface.wrappers is not None:
            self.imports.add(("triomq.aio.calls", call.removeprefix("await ")))
        given = "" if returns == "None" else "return "
        return [*lines, f"        {given}{call}({', '.join(called + arguments)})"]

    def _same(self, definition: Function) -> bool:
        """Return whether a method has the same parameters and types in all interfaces."""
        overloaded = len(_public(self.kind).get(definition.name, ())) > 1
        if definition.name == "__init__" or definition.decorator_list or overloaded:
            return False
        nodes = [*ast.walk(definition.args), *ast.walk(definition.returns or definition.args)]
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        parameters = [node for node in nodes if isinstance(node, ast.arg)]
        given = {parameter.arg for parameter in parameters} | set(map(ast.unparse, parameters))
        return not names & OWN_TYPES.keys() and not given & WRAPPED.keys()

    def _block(
        self, module: ModuleType, definition: Function, returns: str, documentation: str
    ) -> list[str]:
        """Return a method whose block waits, not the method itself."""
        parameters, arguments = self._parameters(module, definition.args, timeout=False)
        call = f"self._target.{definition.name}({', '.join(arguments)})"
        return [
            f"    def {definition.name}({', '.join(parameters)}) -> {returns}:",
            *self._documented(definition.name, documentation),
            f"        return {returns}({call}, self._portal)",
        ]

    def _property(self, name: str, annotation: str, documentation: str) -> list[str]:
        lines = ["    @property", f"    def {name}(self) -> {annotation}:"]
        return [
            *lines,
            *([f'        """{_first_paragraph(documentation)}"""'] if documentation else []),
            f"        return self._target.{name}",
        ]

    def _documented(self, name: str, documentation: str) -> list[str]:
        if not documentation:
            raise ValueError(
                f"{self.kind.__name__}.{name} has no docstring: its first line is shown in every"
                " interface"
            )
        return [f'        """{_first_paragraph(documentation)}"""']

    def _parameters(
        self, module: ModuleType, given: ast.arguments, *, timeout: bool
    ) -> tuple[list[str], list[str]]:
        """Return the parameters, and the arguments that hand them on."""
        parameters, arguments = [], []
        defaults = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
        for parameter, default in zip(given.args, defaults, strict=True):
            parameters.append(self._parameter(module, parameter, default))
            if parameter.arg != "self":
                arguments.append(_handed_on(parameters[-1], parameter.arg))
        if given.vararg is not None:
            parameters.append(f"*{self._parameter(module, given.vararg, None)}")
            arguments.append(f"*{given.vararg.arg}")
        elif given.kwonlyargs or timeout:
            parameters.append("*")
        for parameter, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            parameters.append(self._parameter(module, parameter, default))
            arguments.append(f"{parameter.arg}={_handed_on(parameters[-1], parameter.arg)}")
        if timeout:
            parameters.append("timeout: float | None = None")
        return parameters, arguments

    def _parameter(self, module: ModuleType, parameter: ast.arg, default: ast.expr | None) -> str:
        text = parameter.arg
        if parameter.annotation is not None:
            text += f": {self._annotation(module, parameter.annotation)}"
        if default is not None:
            text += (" = " if parameter.annotation else "=") + self._annotation(module, default)
        return text

    def _annotation(self, module: ModuleType, expression: ast.expr | None) -> str:
        """Return the source of an expression, and import the names in it."""
        assert expression is not None, "the Trio classes are annotated"
        for node in ast.walk(expression):
            if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
                self.imports.add(self._home(module, node.id))
        return ast.unparse(expression)

    def _home(self, module: ModuleType, name: str) -> tuple[str, str]:
        """Return (module, name) of a name used in a Trio module.

        Messages and handlers are those of the interface.
        """
        if name in OWN_TYPES:
            return f"triomq.{self.interface.name}.{OWN_TYPES[name]}", name
        return _imported(module).get(name, module.__name__), name


@functools.cache
def _imported(module: ModuleType) -> dict[str, str]:
    """Return the module of each imported name; "" for a module that is imported itself."""
    found: dict[str, str] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            source = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            found |= {alias.name: source for alias in node.names}
    return found


@functools.cache
def _public(owner: type) -> Definitions:
    """Return the definitions in a class body, ``__init__`` included, with their documentation."""
    module = sys.modules[owner.__module__]
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(owner)).body
        if isinstance(node, ast.ClassDef)
    )
    found: Definitions = defaultdict(list)
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, Function):
            name, documentation = node.name, ast.get_docstring(node) or ""
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, documentation = node.target.id, _text(following)
        else:
            continue
        if name == "__init__" or not name.startswith("_"):
            found[name].append((module, node, documentation))
    return found


def _text(node: ast.stmt | None) -> str:
    """Return the documentation that follows an attribute as a string."""
    match node:
        case ast.Expr(ast.Constant(str(text))):
            return inspect.cleandoc(text)
    return ""


def _defined(path: Path, name: str) -> set[str]:
    """Return the names that a hand-written class defines."""
    classes = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    return {node.name for node in classes[0].body if isinstance(node, Function)}


def _handed_on(parameter: str, name: str) -> str:
    return WRAPPED.get(parameter, WRAPPED.get(name, name)) if ":" in parameter else name


def _first_paragraph(documentation: str) -> str:
    """Return the first paragraph, indented as a method's docstring."""
    return documentation.partition("\n\n")[0].replace("\n", "\n        ")


def _laid_out(source: str) -> str:
    """Return the module with sorted imports, formatted as the project's code is."""
    for work in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        command = ["ruff", *work, "--stdin-filename", PACKAGE / "generated.py", "-"]
        source = subprocess.run(
            [sys.executable, "-m", *command],
            input=source,
            capture_output=True,
            text=True,
            check=True,
            cwd=PACKAGE.parent,
        ).stdout
    return source


def _import_lines(imports: Iterable[tuple[str, str]]) -> Iterator[str]:
    for module, name in sorted(imports):
        yield f"from {module} import {name}" if module else f"import {name}"
