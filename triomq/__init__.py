"""TrioMQ: a message-queue cluster in pure Python on Trio that speaks Apache RocketMQ's protocol.

This module offers the SDK; names are loaded on first use.

    from triomq import Producer, PushConsumer

Other interfaces: ``triomq.sync`` (blocking), ``triomq.aio`` (asyncio), ``triomq.spark``,
``triomq.testing``.
"""

from typing import TYPE_CHECKING, Any

from triomq import client as _client

if TYPE_CHECKING:
    from triomq.client import *  # noqa: F403 - the names of its __all__

__version__ = "0.2.0"

__all__ = ["__version__"]
__all__ += _client.__all__


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_client, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
