"""The command top: a live view of a cluster in the terminal."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, UsageError, Values, whole
from triomq.client.admin.times import request_seconds
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.result import Result, Table

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

ONCE_REQUESTS_MAX = 2000
"""requests for the rates of topics and the members of groups in one frame of ``--once``"""


async def one_frame(admin: Admin, options: Values) -> Result:
    """Return one frame as text and JSON."""
    # Not for the help: start-up time.
    from triomq.client.mqadmin.top.loader import load_once
    from triomq.client.mqadmin.top.tabs import CLUSTER, GROUPS, TABS, TOPICS, headline  # likewise

    frame = await load_once(admin, options.number("timeout"), ONCE_REQUESTS_MAX)
    now, limit = time.time(), options.number("rows")
    text, everything = options.maybe_text("filter") or "", options.flag("all")
    found = {
        tab.name: tab.chosen(frame, now, sort=tab.sort_keys[0], text=text, everything=everything)
        for tab in TABS
    }
    blocks: list[Table | str] = [headline(frame, now)]
    for tab in TABS:
        rows = found[tab.name]
        more = f" (the first {limit}; --rows and --filter show others)" if len(rows) > limit else ""
        blocks += ["", f"{tab.title}: {len(rows)}{more}", tab.table(rows[:limit])]
    document: dict[str, object] = {
        "servers": found[CLUSTER.name][:limit],
        "topics": found[TOPICS.name][:limit],
        "groups": found[GROUPS.name][:limit],
        "topicCount": len(found[TOPICS.name]),
        "groupCount": len(found[GROUPS.name]),
        "timestamp": int(now * 1000),
    }
    failures = frame.failures()
    answering = sum(broker.answers for broker in frame.view.brokers)
    return Result(
        document=document, blocks=blocks, failures=failures, asked=len(failures) + answering
    )


def live(values: Values) -> int:
    """Run the live view until it is left; return the exit code."""
    try:
        # Not for the help, and the package of the extra may be missing.
        from triomq.client.mqadmin.top.screen import PortalSource, TopApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise UsageError(
            "the live view needs the package textual: pip install 'triomq[admin]', or print one"
            " frame with --once"
        ) from None
    from triomq.client.admin.access import given_access  # not for the help
    from triomq.client.admin.admin import Admin  # likewise
    from triomq.client.core.portal import Portal  # likewise
    from triomq.client.mqadmin.core.exit_codes import EXIT_OK  # likewise
    from triomq.client.mqadmin.top.loader import TopLoader, open_loader  # likewise

    tls, credentials = given_access(values)
    seconds = request_seconds(values.number("timeout"))

    def connect() -> Admin:
        namesrv = values.maybe_text("namesrvAddr")
        return Admin(namesrv, timeout_seconds=seconds, tls=tls, credentials=credentials)

    # Without a handler Python would print warnings over the view; rows name what does not answer.
    logging.getLogger("triomq").addHandler(logging.NullHandler())
    interval = values.number("interval")
    portal: Portal[TopLoader] = Portal(open_loader(connect(), connect(), interval, seconds))
    loader = portal.start().result()
    try:
        app = TopApp(PortalSource(loader, portal))
        app.run()
    finally:
        left = portal.stop()
    left.result()  # raises the error of a loader that crashed
    return app.return_code or EXIT_OK


COMMANDS = (
    AdminCommand("top", one_frame, screen=live).with_options(
        Option(
            "-i, --interval SECONDS",
            "pause between two polls of the live view",
            whole(1, 3600),
            default=2,
        ),
        Option("--once", "print one frame and exit; so do --json, --csv, --watch and a pipe"),
        Option("--filter TEXT", "only rows whose name contains this text, in one frame"),
        Option("--rows N", "rows of each table, in one frame", whole(1, 50_000), default=50),
        Option("--all", "with topics and groups of the system, in one frame"),
    ),
)
