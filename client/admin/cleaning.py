"""The clean-ups that brokers offer; see ``Admin.clean``."""

from __future__ import annotations

import enum

from triomq.remoting.protocol.codes import RequestCode


class Cleaning(enum.Enum):
    """A clean-up; the value is its request code."""

    EXPIRED_COMMIT_LOG = RequestCode.DELETE_EXPIRED_COMMITLOG
    """commit log files older than fileReservedTime, without waiting for the hour of deleteWhen"""
    EXPIRED_QUEUES = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
    """queues without messages; the next message of such a queue has offset 0"""
    UNUSED_TOPICS = RequestCode.CLEAN_UNUSED_TOPIC
    """queues of topics that do not exist any more"""
