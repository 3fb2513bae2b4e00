"""AuditSettings: where decisions about requests are written, and how many files are kept."""

from __future__ import annotations

import attrs

from triomq.remoting.core.settings import number, optional_text


@attrs.frozen(kw_only=True)
class AuditSettings:
    """The audit log; docs/security.md explains it.

    path: file to which decisions about requests are written as JSON lines, a second one beside it
        has the refusals; empty: none is
    bytes_max: size at which a file of the audit log is rotated (bytes)
    files: files that are kept of each of the two, the one that is written included
    sample_every: of the allowed requests of clients and servers (sends, pulls, heartbeats, ...) one
        in this number is written; 1: all, 0: none. Refusals and administrative requests are always
        written
    """

    path: str = optional_text("auditLogPath", own=True)
    bytes_max: int = number("auditLogFileBytes", 50 * 1024 * 1024, low=4096, high=2**40, own=True)
    files: int = number("auditLogFiles", 10, high=1000, own=True)
    sample_every: int = number("auditLogSampleEvery", 1000, low=0, own=True)
