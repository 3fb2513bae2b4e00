"""``RecallMethods``: what a producer does with messages that wait for their time."""

from __future__ import annotations

from abc import abstractmethod

from triomq.client.core.arguments import shown
from triomq.client.core.config import ProducerSettings
from triomq.client.core.errors import MessageInvalid
from triomq.client.core.lifetime import Lifetime
from triomq.client.sending.receipt import SendReceipt
from triomq.client.sending.sender import Sender
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.send import RecallMessageHeader


class RecallMethods(Lifetime):
    """The part of a producer that takes messages back."""

    group: str
    settings: ProducerSettings

    @abstractmethod
    def _active(self) -> Sender:
        """Return the running sender. Raises: ``NotRunning``."""

    async def recall(self, receipt: SendReceipt) -> None:
        """Take back a message that was sent with ``delay`` or ``deliver_at``.

        The broker stores the recall; it has no effect if the message was delivered meanwhile. The
        broker must have ``recallMessageEnable=true``.

        Raises: ``MessageInvalid`` (the message has no such time, or the broker is too old);
        ``IllegalOperation`` (its time is over); ``PermissionDenied`` (recalls are switched off);
        ``BrokerError``, ``ConnectionFailed``, ``RequestTimeout``, ``RouteNotFound``.
        """
        sender = self._active()
        session, trace = sender.session, sender.trace
        if not isinstance(receipt, SendReceipt):
            raise MessageInvalid(f"recall takes the receipt of a send, not {shown(receipt)}")
        if receipt.recall_handle is None:
            raise MessageInvalid(
                f"message {receipt.message_id} has no recall handle: only a message that was sent"
                " with delay or deliver_at has one, from a broker of release 5.4 or later"
            )
        header = RecallMessageHeader(
            topic=receipt.queue.topic,
            recall_handle=receipt.recall_handle,
            producer_group=self.group,
            broker_name=receipt.queue.broker_name,
        )
        success = False
        try:
            await session.call(
                session.master_address(receipt.queue),
                request(RequestCode.RECALL_MESSAGE, header),
                session.settings.request_timeout,
            )
            success = True
        finally:
            if trace is not None:
                trace.recall(
                    topic=receipt.queue.topic,
                    message_id=receipt.message_id,
                    success=success,
                    region=receipt.region,
                )
