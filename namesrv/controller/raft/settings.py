"""Time-outs and limits of a Raft node."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class RaftSettings:
    """Every member of a group must have the same ``election_seconds`` and ``clock_drift_max``:
    the leader's lease relies on the time that the others wait before they vote.
    """

    heartbeat_seconds: float = 0.3
    election_seconds: float = 1.5
    """A node that heard of a leader in this time votes for no other. It campaigns after one to two
    times as long; a leader that no majority answered in this time steps down.
    """
    clock_drift_max: float = 0.1
    """Part by which the steady clocks of two members may differ in speed."""
    batch_entries_max: int = 64
    """Entries in one message."""
    batch_bytes_max: int = 256 * 1024
    """Bytes of entries, or of a snapshot, in one message; a larger entry is sent alone."""
    command_bytes_max: int = 64 * 1024
    """Bytes of one command."""
    uncommitted_entries_max: int = 1024
    """Entries that the leader may hold beyond the commit index."""
    reads_max: int = 1024
    """Reads that wait for the leader to learn that it still is one."""
    snapshot_bytes_max: int = 64 * 1024 * 1024

    @property
    def lease_seconds(self) -> float:
        """Return how long after a round of heartbeats no other leader can be elected."""
        return self.election_seconds * (1 - self.clock_drift_max)
