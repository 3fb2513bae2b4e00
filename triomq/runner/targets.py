"""From ``module:name`` to the consumers that it stands for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triomq import aio, client, sync
from triomq.client.core.arguments import shown
from triomq.remoting.core.settings import ConfigError

KINDS: tuple[type[Any], ...] = (client.PushConsumer, aio.PushConsumer, sync.PushConsumer)


def load_consumers(targets: Sequence[str]) -> list[Any]:
    """Import the modules, from the current directory too, and return the consumers, of one kind.

    Raises: ``ConfigError``; errors of the application's modules.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    consumers = [each for target in targets for each in _consumers(target)]
    kinds = {kind for consumer in consumers for kind in KINDS if isinstance(consumer, kind)}
    if len(kinds) > 1:
        names = ", ".join(sorted(f"{kind.__module__}" for kind in kinds))
        raise ConfigError(
            "", f"the consumers are of several kinds ({names})", "run each kind by its own command"
        )
    return consumers


def _consumers(target: str) -> list[Any]:
    """Return the consumers of one target. Raises: ``ConfigError``."""
    module_name, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists and imports one that does not
        raise ConfigError(
            target, f"there is no module {error.name}", "start in its directory, or install it"
        ) from None
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigError(
                target, f"{module_name} has no {path}", "name a consumer, or a function"
            ) from None
    if callable(found) and not isinstance(found, KINDS):
        found = found()
    consumers = list(found) if isinstance(found, list | tuple) else [found]
    for consumer in consumers:
        if not isinstance(consumer, KINDS):
            raise ConfigError(
                target, f"gives {shown(consumer)}", "give a PushConsumer, or a function for it"
            )
        trio_consumer = getattr(consumer, "_target", consumer)
        if trio_consumer._handler is None:
            raise ConfigError(
                target, f"{consumer!r} has no handler", "give it handler= or batch_handler="
            )
    return consumers
