"""The warning that messages are hidden by a smaller number of queues."""

from __future__ import annotations


def fewer_queues(topic: str, server: str, before: int, after: int) -> str:
    """Return the warning about queues that are not read any more."""
    which = f"queue {after} is" if before - after == 1 else f"queues {after} to {before - 1} are"
    return (
        f"{which} no longer read of topic {topic} at {server}: messages that wait there come when"
        f" it has {before} queues to read again"
    )
