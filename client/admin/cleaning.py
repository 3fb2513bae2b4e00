"""What brokers can be asked to clean up, see `Admin.clean`."""

from __future__ import annotations

import enum

from triomq.remoting.protocol.codes import RequestCode


class Cleaning(enum.Enum):
    """Values are the request codes."""

    EXPIRED_COMMIT_LOG = RequestCode.DELETE_EXPIRED_COMMITLOG
    """commit log files older than fileReservedTime, without waiting for the hour of deleteWhen"""
    EXPIRED_QUEUES = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
    """queues all of whose messages are gone; the next message of such a queue is number 0 again"""
    UNUSED_TOPICS = RequestCode.CLEAN_UNUSED_TOPIC
    """queues of topics that do not exist any more"""
