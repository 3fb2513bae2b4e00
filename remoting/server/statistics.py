"""Snapshots of a server's counters: what the runtime-information command and a metrics page read. Counts since the start."""

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class CodeStatistics:
    """One request code: `requests` came to the handler, `refused` were answered busy, `failed` ended in an unexpected error."""

    requests: int
    refused: int
    failed: int


@attrs.frozen(kw_only=True)
class PoolStatistics:
    """One business pool. `overloaded`, `rejected`, `expired` and `stalled` are the four ways to be refused."""

    workers: int
    idle_workers: int
    queued_requests: int
    queued_bytes: int
    requests_in_place: int
    requests_queued: int
    overloaded: int
    rejected: int
    expired: int
    stalled: int


@attrs.frozen(kw_only=True)
class StageStatistics:
    """Selectors or codecs, summed. A batch runs in place or through the mailbox of the next stage."""

    turns: int
    batches_in_place: int
    batches_queued: int


@attrs.frozen(kw_only=True)
class ServerStatistics:
    """All of one server. `broken` counts connections closed for what they sent, `sent_away` requests that came while it stopped."""

    connections: int
    accepted: int
    turned_away: int
    closed: int
    closed_idle: int
    broken: int
    received_bytes: int
    sent_bytes: int
    requests: int
    unknown_requests: int
    sent_away: int
    selectors: StageStatistics
    pools: Mapping[str, PoolStatistics]
    codes: Mapping[int, CodeStatistics]
