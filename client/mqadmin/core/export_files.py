"""What the commands that write files about a cluster share: the file, and topics and groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triomq.client.admin.arguments import Option, Values
from triomq.client.core.errors import SettingsError

DEFAULT_FOLDER = "/tmp/rocketmq/export"
FOLDER = Option("-f, --filePath FOLDER", "folder of the file", default=DEFAULT_FOLDER)


def write_export(options: Values, name: str, document: Mapping[str, Any]) -> str:
    """Write a file of the folder and return its path. Raises: SettingsError."""
    path = Path(options.text("filePath")) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=4, ensure_ascii=False, sort_keys=True) + "\n")
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written: {error.strerror or error}; name a folder with -f"
        ) from None
    return str(path)
