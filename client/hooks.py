"""Hooks of an application: see every send and every call of a handler, forbid a send, and look at the requests on the wire.

A hook is any object with these methods.  They are called in the loop, in the order in which they were given, and must not wait.  What a send
or consume hook raises is logged and changes nothing; what `check_forbidden` raises is the outcome of the send.

    class Audit:
        def before_send(self, context: SendContext) -> None: ...
        def after_send(self, context: SendContext) -> None:
            log(context.message_id, context.receipt, context.error)

    ProducerSettings(send_hooks=[Audit()])

Source for when they are called: client/…/hook/SendMessageHook.java, CheckForbiddenHook.java, ConsumeMessageHook.java, remoting/…/RPCHook.java.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import attrs

from triomq.client.errors import TrioMQError
from triomq.remoting.client.hooks import RpcHook
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message import parse_properties
from triomq.remoting.protocol.reprs import short_bytes, short_count

__all__ = ["CheckForbidden", "ConsumeContext", "ConsumeHook", "RpcHook", "SendContext", "SendHook"]

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True)
class SendContext:
    """One try of a send.  `attributes` is the hook's own, to carry something from `before_send` to `after_send`."""

    group: str
    topic: str
    queue: MessageQueue
    address: str
    """the broker's"""
    message_id: str
    body: bytes = attrs.field(repr=short_bytes)
    """as it travels: compressed, or several messages for a batch"""
    batch: bool
    oneway: bool
    receipt: Any = None
    """the `SendReceipt`, after a successful try that is answered"""
    error: TrioMQError | None = None
    """why the try failed"""
    attributes: dict[str, Any] = attrs.field(factory=dict)
    properties_text: str = attrs.field(default="", repr=False)

    @property
    def properties(self) -> dict[str, str]:
        """The message's properties as they travel; for a batch only what its messages share."""
        return parse_properties(self.properties_text)


class SendHook(Protocol):
    """Told of every try of every send, also of those that end with an error."""

    def before_send(self, context: SendContext) -> None:
        """The request is about to be sent."""

    def after_send(self, context: SendContext) -> None:
        """The try is over: `receipt` or `error` says how; neither for a one-way send or a cancelled one."""


CheckForbidden = Callable[[SendContext], None]
"""Called before every try: raise to forbid the send; the error goes to the sender as it is, and there is no other try."""


@attrs.define(eq=False, kw_only=True)
class ConsumeContext:
    """One call of a handler."""

    group: str
    messages: Sequence[Any] = attrs.field(repr=short_count)
    """the `ReceivedMessage`s that it gets; afterwards their `settled` says whether it gave verdicts itself"""
    success: bool = False
    """whether it returned"""
    error: BaseException | None = None
    """what it raised"""
    attributes: dict[str, Any] = attrs.field(factory=dict)


class ConsumeHook(Protocol):
    """Told of every call of a consumer's handler."""

    def before_consume(self, context: ConsumeContext) -> None:
        """The handler is about to be called."""

    def after_consume(self, context: ConsumeContext) -> None:
        """It has returned, or raised."""


def with_consume_hooks(
    handler: Callable[[Any], Awaitable[object]], group: str, hooks: Sequence[ConsumeHook]
) -> Callable[[Any], Awaitable[object]]:
    """Return the handler, or one that tells the hooks before and after it; what it takes is a message or a list of them."""
    if not hooks:
        return handler

    async def told(what: Any) -> None:
        context = ConsumeContext(group=group, messages=what if isinstance(what, list) else [what])
        tell(hooks, "before_consume", context)
        try:
            await handler(what)
        except BaseException as error:
            context.error = error
            raise
        else:
            context.success = True
        finally:
            tell(hooks, "after_consume", context)

    return told


def tell(hooks: Sequence[Any], method: str, context: SendContext | ConsumeContext) -> None:
    """Call one method of each hook; their errors are logged and go no further."""
    for hook in hooks:
        try:
            getattr(hook, method)(context)
        except Exception:
            logger.exception("%s of the hook %r failed; the message goes on", method, hook)
