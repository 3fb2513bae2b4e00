"""The house rules about imports: which layer may use which, and no circles."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from source_tree import PACKAGES, imported

ADMINISTRATION = ("client.core", "client.trace", "client.sending", "remoting")
"""What administration stands on: it sends copies of messages, and receives nothing."""
RECEIVING = ("client.core", "client.receiving", "remoting")
STORE_FLOORS = ("core", "io", "queues", "keys", "log", "reading", "indexing")
"""The folders of the store, from the ground up: each imports those before it only."""

# A module may import from its own prefix and from those on the right. The longest prefix wins.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "remoting.core": (),
    "remoting.protocol": ("remoting.core",),
    "remoting.protocol.bodies": ("remoting.core", "remoting.protocol"),
    "remoting.protocol.headers": ("remoting.core", "remoting.protocol"),
    "remoting.access": ("remoting.core", "remoting.protocol"),
    "remoting.audit": ("remoting.access", "remoting.core", "remoting.protocol"),
    "remoting.tls": ("remoting.core",),
    "remoting.client": ("remoting.core", "remoting.protocol", "remoting.tls"),
    "remoting": ("remoting",),
    "namesrv.controller.raft": (),
    "namesrv": ("remoting",),
    "namesrv.controller": ("remoting",),
    **{
        f"broker.store.{floor}": (
            *(f"broker.store.{lower}" for lower in STORE_FLOORS[:number]),
            *("remoting.core", "remoting.protocol"),
        )
        for number, floor in enumerate(STORE_FLOORS)
    },
    "broker.store": ("remoting.core", "remoting.protocol"),
    "broker.replication": ("broker.store", "remoting"),
    "broker.filters": (),
    "broker.services": ("broker.filters", "broker.store", "remoting"),
    "broker.roles": (
        "broker.services",
        "broker.replication",
        "broker.store",
        "broker.config",
        "remoting",
    ),
    "broker.processors": (
        "broker.services",
        "broker.roles",
        "broker.filters",
        "broker.replication",
        "broker.store",
        "broker.config",
        "remoting",
    ),
    "broker.inspect": ("broker.store", "remoting"),
    "broker": ("broker", "remoting"),
    "client.core": ("remoting",),
    "client.sending": ("client.core", "remoting"),
    "client.receiving": RECEIVING,
    "client.trace": ("client.core", "client.sending", "remoting"),
    **{
        f"client.{above}": ("client.sending", *RECEIVING)
        for above in ("requests", "spans", "transactions")
    },
    "client.idempotency": ("client.core", "client.receiving", "remoting.protocol"),
    "client.sdk": (
        *(f"client.{name}" for name in ("requests", "sending", "spans", "trace", "transactions")),
        *RECEIVING,
    ),
    "client.runner": ("client.sdk", *RECEIVING),
    "client.admin": ADMINISTRATION,
    "client.mqadmin": ("client.admin", "client.sdk.producer", *ADMINISTRATION),
    # A benchmark measures the SDK, consumers included; the rest of administration needs none.
    "client.mqadmin.bench": (
        *("client.admin", "client.mqadmin.core", "client.receiving", "client.sdk"),
        *ADMINISTRATION,
    ),
    "client.console": ("client.admin", "client.sdk.producer", *ADMINISTRATION),
    "client.proxy": ("client.core", "remoting"),
    "client.spark": (
        *("remoting.core", "remoting.protocol", "remoting.tls.client"),
        *(f"remoting.client.{name}" for name in ("access", "blocking", "name_servers")),
    ),
    "client.pipeline": ("client.spark", "remoting"),
    # The face of the package: programs are beside it.
    "client": (
        *(f"client.{name}" for name in ("core", "sdk", "sending", "receiving", "requests")),
        *(f"client.{name}" for name in ("transactions", "trace", "idempotency", "runner", "admin")),
        "remoting",
    ),
}
# A package inside another is above, or beside, the modules on the right: those do not import it.
MAY_NOT_IMPORT: dict[str, tuple[str, ...]] = {
    "remoting.protocol.bodies": ("remoting.protocol.headers", "remoting.protocol.consuming"),
    "remoting.protocol.headers": ("remoting.protocol.bodies", "remoting.protocol.consuming"),
    **{
        f"remoting.{name}": ("remoting.grpc", "remoting.messaging")
        for name in ("server", "client", "monitor", "tls", "simulated")
    },
    "remoting.grpc": ("remoting.messaging",),
}


def _within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def _longest(table: Mapping[str, tuple[str, ...]], module: str) -> str | None:
    return max((prefix for prefix in table if _within(module, (prefix,))), key=len, default=None)


def layer_errors(
    module: str, tree: ast.AST, modules: Mapping[str, object] | None = None
) -> Iterator[str]:
    """Yield what this module imports against the rules above.

    ``modules``: the names of all modules, to tell ``from package import module`` from other names.
    """
    rule = _longest(MAY_IMPORT, module)
    barred = MAY_NOT_IMPORT.get(_longest(MAY_NOT_IMPORT, module) or "", ())
    versions = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module == "triomq"
        and [alias.name for alias in node.names] == ["__version__"]
    }
    for name, line in imported(tree, modules):
        if line in versions:  # every program prints it
            continue
        top = name.split(".")[0]
        if name.startswith(".") or top in PACKAGES:
            yield f"{module}:{line} imports {name}: import triomq.… only"
        if rule is None or top != "triomq":
            continue
        target = name.removeprefix("triomq").removeprefix(".")
        allowed = (rule, *MAY_IMPORT[rule])
        if not _within(target, allowed):
            yield (
                f"{module}:{line} imports triomq.{target}: {rule} may import only"
                f" {', '.join(allowed)}"
            )
        elif _within(target, barred):
            yield f"{module}:{line} imports triomq.{target}: that layer is above or beside it"


def import_graph(trees: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """Return which modules each module imports, imports for types included."""
    return {
        module: {
            target
            for name, _ in imported(tree, trees)
            if (target := name.removeprefix("triomq.")) in trees and target != module
        }
        for module, tree in trees.items()
    }


def folder_graph(graph: Mapping[str, set[str]], packages: Collection[str]) -> dict[str, set[str]]:
    """Return which folders the modules of each folder import. ``packages``: modules that are an
    ``__init__``, which lies in the folder of its name. The version in ``triomq`` does not count.
    """

    def folder(module: str) -> str:
        return module if module in packages else module.rpartition(".")[0]

    folders: dict[str, set[str]] = {folder(module): set() for module in graph}
    for module, targets in graph.items():
        own = folder(module)
        folders[own] |= {folder(target) for target in targets} - {own, "triomq"}
    return folders


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules, or folders, that import each other, directly or not, sorted.

    Tarjan's strongly connected components, with a stack instead of recursion.
    """
    found: list[list[str]] = []
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_modules: list[str] = []
    for start in sorted(graph):
        if start in number:
            continue
        work = [(start, iter(sorted(graph[start])))]
        number[start] = lowest[start] = len(number)
        open_modules.append(start)
        while work:
            module, targets = work[-1]
            for target in targets:
                if target not in number:
                    number[target] = lowest[target] = len(number)
                    open_modules.append(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in open_modules:
                    lowest[module] = min(lowest[module], number[target])
            else:
                work.pop()
                if work:
                    above = work[-1][0]
                    lowest[above] = min(lowest[above], lowest[module])
                if lowest[module] == number[module]:
                    cut = open_modules.index(module)
                    group = open_modules[cut:]
                    del open_modules[cut:]
                    if len(group) > 1:
                        found.append(sorted(group))
    return sorted(found)
