"""Hooks of an application around every send and every handler call, and checks that forbid a send.

A hook is any object with these methods. Hooks are called in the loop, in the given order, and must
not block. An error of a send hook or a consume hook is logged and changes nothing; an error of
``check_forbidden`` is the outcome of the send. Hooks on the requests themselves are RPC hooks
(``triomq.RpcHook``).

    class Audit:
        def before_send(self, context: SendContext) -> None: ...
        def after_send(self, context: SendContext) -> None:
            log(context.message_id, context.receipt, context.error)

    ProducerSettings(send_hooks=[Audit()])

Source for when they are called: client/…/hook/SendMessageHook.java, CheckForbiddenHook.java,
ConsumeMessageHook.java, remoting/…/RPCHook.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs

from triomq.client.core.errors import TrioMQError
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message_properties import parse_properties
from triomq.remoting.protocol.short_repr import short_bytes, short_count

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True)
class SendContext:
    """One attempt of a send.

    ``attributes`` belongs to the hook: it carries values from ``before_send`` to ``after_send``.
    """

    group: str
    topic: str
    queue: MessageQueue
    address: str
    """the broker's address"""
    message_id: str
    body: bytes = attrs.field(repr=short_bytes)
    """the body as it travels: compressed, or the messages of a batch together"""
    batch: bool
    oneway: bool
    receipt: Any = None
    """the ``SendReceipt``, after a successful attempt that was answered"""
    error: TrioMQError | None = None
    """why the attempt failed"""
    trace_on: bool = True
    """whether the broker lets clients trace messages (TRACE_ON of its answer)"""
    attributes: dict[str, Any] = attrs.field(factory=dict)
    properties_text: str = attrs.field(default="", repr=False)

    @property
    def properties(self) -> dict[str, str]:
        """The message's properties as they travel; of a batch only the shared ones."""
        return parse_properties(self.properties_text)


class SendHook(Protocol):
    """Called before and after every attempt of every send, failed ones included."""

    def before_send(self, context: SendContext) -> None:
        """Note that the request is about to be sent."""

    def after_send(self, context: SendContext) -> None:
        """Note the end: ``receipt`` or ``error`` is set, or neither if one-way or cancelled."""


CheckForbidden = Callable[[SendContext], None]
"""Called before every attempt; an error ends the send and goes to the sender unchanged."""


@attrs.define(eq=False, kw_only=True)
class ConsumeContext:
    """One call of a handler, one ``async with message:`` block, or one poll."""

    group: str
    messages: Sequence[Any] = attrs.field(repr=short_count)
    """each a ``ReceivedMessage``; afterwards ``settled`` and ``given_back`` tell what the handler
    did with it"""
    success: bool = False
    """whether the handler returned"""
    error: BaseException | None = None
    """the error that the handler raised"""
    elapsed: float = 0.0
    """seconds since the application got the messages: not 0 if it settles one by ``ack`` or
    ``retry`` without a handler or a block; the hooks are then called around that"""
    polled: bool = False
    """whether a poll returned the messages, and nobody tells what becomes of them"""
    attributes: dict[str, Any] = attrs.field(factory=dict)


class ConsumeHook(Protocol):
    """Called before and after every call of a consumer's handler.

    If the consumer iterates, around ``async with message:``; if it polls, with what a poll returns.
    """

    def before_consume(self, context: ConsumeContext) -> None:
        """Note that the handler is about to be called."""

    def after_consume(self, context: ConsumeContext) -> None:
        """Note that the handler has returned or raised."""


@attrs.define(eq=False, kw_only=True)
class SettleContext:
    """One settlement of a message."""

    group: str
    message: Any
    """the ``ReceivedMessage``"""
    outcome: str
    """``"ack"``, ``"retry"`` or ``"dead_letter"``"""
    error: BaseException | None = None
    attributes: dict[str, Any] = attrs.field(factory=dict)


class SettleHook(Protocol):
    """Called before and after a message is settled."""

    def before_settle(self, context: SettleContext) -> None:
        """Note that the message is about to be settled."""

    def after_settle(self, context: SettleContext) -> None:
        """Note that it is settled, or that ``error`` prevented it."""


def call_hooks(
    hooks: Sequence[Any], method: str, context: SendContext | ConsumeContext | SettleContext
) -> None:
    """Call one method of each hook; log errors and go on."""
    for hook in hooks:
        try:
            getattr(hook, method)(context)
        except Exception:
            logger.exception("%s of the hook %r failed; the message is not affected", method, hook)
