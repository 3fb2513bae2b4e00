"""Log records as JSON, one object in each line, for programs that collect logs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from triomq.remoting.core.printable import printable_lines


class JsonFormatter(logging.Formatter):
    """Writes time (UTC), level, logger, message, and fields and exception where there are any.

    Everything but ASCII is escaped, so no text of a peer reaches a terminal as it is.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if fields:
            entry["fields"] = dict(fields)
        if record.exc_info:
            entry["exception"] = printable_lines(self.formatException(record.exc_info))
        return json.dumps(entry, default=str).replace("\x7f", "\\u007f")
