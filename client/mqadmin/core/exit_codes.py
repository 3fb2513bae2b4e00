"""The exit codes of mqadmin, and the code of each failure."""

from __future__ import annotations

from collections.abc import Mapping

from triomq.client.admin.arguments import UsageError
from triomq.client.admin.errors import (
    BrokerMissing,
    ClusterNotFound,
    ContextNotFound,
    MessageNotFound,
    MessageNowhere,
    SubjectMissing,
    TraceNotFound,
    TraceTopicMissing,
)
from triomq.client.core.errors import (
    GroupNotFound,
    GroupOffline,
    NoNameServer,
    RouteNotFound,
    SettingsError,
    TopicNotFound,
)
from triomq.remoting.core.interrupt import EXIT_INTERRUPTED

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PARTIAL = 3
EXIT_NOT_FOUND = 4
EXIT_NO_NAME_SERVER = 6

EXIT_CODES: Mapping[int, str] = {
    EXIT_OK: "done",
    EXIT_FAILED: "the operation failed, for instance because a broker refused it",
    EXIT_USAGE: "the command line cannot be understood; nothing was done",
    EXIT_PARTIAL: (
        "some brokers answered and some did not, or some steps failed; what is printed is"
        " incomplete"
    ),
    EXIT_NOT_FOUND: "the topic, group, cluster, broker, message, user or context does not exist",
    EXIT_NO_NAME_SERVER: "no name server is configured, or none answered",
    EXIT_INTERRUPTED: "Ctrl-C; whether a change in progress took effect is unknown",
}
"""code → its meaning, as the manual lists it"""


def exit_code(error: BaseException) -> int:
    """Return the exit code of a failure."""
    match error:
        case UsageError() | SettingsError():
            return EXIT_USAGE
        case NoNameServer():
            return EXIT_NO_NAME_SERVER
        case (
            RouteNotFound()
            | TopicNotFound()
            | GroupNotFound()
            | GroupOffline()
            | ClusterNotFound()
            | ContextNotFound()
            | BrokerMissing()
            | MessageNotFound()
            | MessageNowhere()
            | TraceNotFound()
            | TraceTopicMissing()
            | SubjectMissing()
        ):
            return EXIT_NOT_FOUND
    return EXIT_FAILED
