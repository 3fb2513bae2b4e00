"""A hook of MkDocs: links to files outside this folder become plain text, since the site has only
this folder.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)(?: \"[^\"]*\")?\)")


def on_page_markdown(markdown: str, /, *, page: Any, **_: Any) -> str:
    """Return the page's text without links that leave the folder of the documentation."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        text, target = link.groups()
        leaves = "://" not in target and posixpath.normpath(
            posixpath.join(folder, target.partition("#")[0])
        ).startswith("..")
        return text if leaves else link[0]

    return _LINK.sub(replaced, markdown)
