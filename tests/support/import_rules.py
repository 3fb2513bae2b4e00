"""The house rules about imports: which layer may use which, and no circles."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from source_tree import PACKAGES, imported

# What the folders of the store share; they import nothing else outside their own layer.
STORE_VALUES = (
    *(
        f"broker.store.{name}"
        for name in (
            "config",
            "delay_levels",
            "disk_space",
            "draft",
            "errors",
            "numbering",
            "retention",
            "stored_times",
            "watermark",
        )
    ),
    *(
        f"remoting.{name}"
        for name in ("protocol", "atomic_file", "open_files", "errors", "log_limit")
    ),
)
# A module may import from its own prefix and from those on the right. The longest prefix wins.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "remoting.protocol.bodies": ("remoting.protocol", "remoting.errors"),
    "remoting.protocol.headers": ("remoting.protocol",),
    "remoting.protocol": ("remoting.errors",),
    "remoting.access": ("remoting.protocol", "remoting.errors", "remoting.settings"),
    "remoting.server": ("remoting",),
    "remoting.tls": (
        "remoting.errors",
        "remoting.findings",
        "remoting.log_limit",
        "remoting.open_files",
        "remoting.properties_file",
        "remoting.settings",
    ),
    "remoting.client": (
        "remoting.busy_poll",
        "remoting.open_files",
        "remoting.protocol",
        "remoting.tls",
        "remoting.errors",
        "remoting.address",
        "remoting.log_limit",
        "remoting.properties_file",
        "remoting.settings",
        "remoting.socket_options",
    ),
    "remoting": ("remoting",),
    "namesrv": ("remoting",),
    **{
        f"broker.store.{name}": STORE_VALUES
        for name in ("draft", "numbering", "stored_times", "watermark")
    },
    "broker.store.io": STORE_VALUES,
    "broker.store.queues": ("broker.store.io", *STORE_VALUES),
    "broker.store.keys": ("broker.store.io", "broker.store.queues", *STORE_VALUES),
    "broker.store.log": ("broker.store.io", "broker.store.queues", *STORE_VALUES),
    "broker.store": (
        "remoting.protocol",
        "remoting.atomic_file",
        "remoting.open_files",
        "remoting.errors",
        "remoting.log_limit",
    ),
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
    "client.spark": (
        "remoting.protocol",
        "remoting.errors",
        "remoting.address",
        "remoting.settings",
        "remoting.tls.client",
        "remoting.client.access",
        "remoting.client.blocking",
        "remoting.client.name_servers",
    ),
    "client.pipeline": ("client.spark", "remoting"),
    "client.admin": ("client", "remoting"),
    "client.idempotency": (
        "client.arguments",
        "client.consumer.message_view",
        "client.consumer.received",
        "client.errors",
        "remoting.protocol",
    ),
    "client": ("remoting",),
}
PROGRAMS_OF_CLIENTS = (
    "client.admin",
    "client.console",
    "client.pipeline",
    "client.proxy",
    "client.runner",
    "client.spark",
)
# A package inside another is above, or beside, the modules on the right: those do not import it.
MAY_NOT_IMPORT: dict[str, tuple[str, ...]] = {
    "remoting.protocol.bodies": ("remoting.protocol.headers",),
    "remoting.protocol.headers": ("remoting.protocol.bodies",),
    **{
        f"remoting.{name}": ("remoting.grpc", "remoting.messaging")
        for name in ("server", "client", "monitor", "tls", "simulated")
    },
    "remoting.grpc": ("remoting.messaging",),
    "client.admin": (
        *("client.consumer", "client.console", "client.pipeline", "client.proxy", "client.spark"),
    ),
    # A benchmark measures the SDK, consumers included; the rest of administration needs none.
    "client.admin.bench": (*("client.console", "client.pipeline", "client.proxy", "client.spark"),),
    "client.console": ("client.consumer", "client.pipeline", "client.proxy", "client.spark"),
    "client.proxy": ("client.consumer", "client.producer", "client.pipeline", "client.spark"),
    "client.consumer": ("client.producer", *PROGRAMS_OF_CLIENTS),
    "client.requests": PROGRAMS_OF_CLIENTS,
    "client.producer": ("client.consumer", *PROGRAMS_OF_CLIENTS),
    "client.transactions": PROGRAMS_OF_CLIENTS,
}
# Modules directly in a folder do not import these packages of it; its ``__init__`` may.
FOUNDATIONS: dict[str, tuple[str, ...]] = {
    "remoting": tuple(
        f"remoting.{name}" for name in ("server", "client", "grpc", "messaging", "monitor", "tls")
    ),
    "client": tuple(
        f"client.{name}"
        for name in (
            *("consumer", "producer", "transactions", "admin", "idempotency"),
            *("console", "pipeline", "proxy", "spark"),
        )
    ),
}
INDEXES = {"client.shared_names"}
"""Modules that only list public names, as an ``__init__`` does."""


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
    barred += FOUNDATIONS.get(module.rpartition(".")[0], ()) if module not in INDEXES else ()
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


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or not: sorted names.

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
