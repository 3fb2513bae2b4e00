"""Refusals of sends while the master of a group changes, or too few of its members are there. Pure.

They share their codes with other refusals, and differ in how the remark begins.

Source: broker/…/SendMessageProcessor.java#handlePutMessageResult,
remoting/…/NettyRemotingAbstract.java#processRequestCommand.
"""

from __future__ import annotations

from triomq.remoting.protocol.codes import ResponseCode

REJECTED = "[REJECTREQUEST]"
"""The broker takes no such requests at all, whatever its load: a slave, or a disk that stalls."""
TOO_FEW = "in-sync replicas not enough"
"""The message is not stored, since too few brokers would have it."""
NOT_CONFIRMED = f"{TOO_FEW}: the message is stored here, and was not confirmed in time"
"""The only refusal of these that leaves a message behind; RocketMQ has none."""


def is_refused_for_now(code: int, remark: str | None) -> bool:
    """Return whether nothing is stored, and the next master, or this one, may take it soon."""
    if remark is None or remark == NOT_CONFIRMED:
        return False
    if code == ResponseCode.SYSTEM_BUSY:
        return remark.startswith(REJECTED)
    return code == ResponseCode.SYSTEM_ERROR and remark.startswith(TOO_FEW)
