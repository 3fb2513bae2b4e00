"""TrioMQ: a message-queue cluster in pure Python on Trio that speaks Apache RocketMQ's protocol.

This module offers the SDK; names are loaded on first use.

    from triomq import Producer, PushConsumer

Other interfaces: ``triomq.sync`` (blocking), ``triomq.aio`` (asyncio) and ``triomq.testing``, which
need no import of their own; ``triomq.spark``, which needs PySpark.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if not os.path.isdir(os.path.join(__path__[0], "client")):
    __path__.append(os.path.dirname(__path__[0]))

from triomq import client as _client

if TYPE_CHECKING:
    from triomq import aio as aio
    from triomq import sync as sync
    from triomq import testing as testing
    from triomq.client import *  # noqa: F403 - the names of its __all__
    from triomq.client.shared_names import *  # noqa: F403 - mypy does not follow `__all__ +=`

__version__ = "0.2.0"

__all__ = ["__version__"]
__all__ += _client.__all__

_INTERFACES = ("aio", "sync", "testing")


def __getattr__(name: str) -> Any:
    if name in _INTERFACES:
        return importlib.import_module(f"triomq.{name}")
    if name not in __all__:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    value = getattr(_client, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_INTERFACES})
