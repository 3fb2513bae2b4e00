"""A TLS context that follows its files: servers and clients reload changed certificates with it.

Files that cannot be used leave the old context in force.

Source: srvutil/…/FileWatchService.java (which also digests files).
"""

from __future__ import annotations

import hashlib
import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.open_files import explained, none_left
from triomq.remoting.core.settings import ConfigError

_log = logging.getLogger(__name__)


@attrs.define(eq=False)
class ReloadingContext:
    """``context`` is what new connections use; ``make`` makes it from ``files``.

    Raises: what ``make`` raises; OSError when too many files are open.
    """

    files: Sequence[Path]
    make: Callable[[], ssl.SSLContext]
    context: ssl.SSLContext = attrs.field(init=False)
    reloads: int = attrs.field(default=0, init=False)
    _loaded: bytes = attrs.field(default=b"", init=False)
    _seen: bytes = attrs.field(default=b"", init=False)
    _refused: bytes = attrs.field(default=b"", init=False)
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def __attrs_post_init__(self) -> None:
        # The digest first: a file that is replaced meanwhile is then loaded again.
        self._loaded = self._seen = _digest(self.files)
        self.context = self.make()

    def reload(self, *, settled: bool) -> bool:
        """Read the files, and make the context again if their content has changed.

        *settled*: only if the content is the same as at the call before, so that the two files of a
        pair can be replaced one after the other.

        Returns: whether there is a new context. Errors go to the log. Checkpoint: never.
        """
        try:
            digest = _digest(self.files)
        except OSError:  # too many open files: the next call tries again
            return False
        waits = settled and digest != self._seen
        self._seen = digest
        if waits or digest == self._refused:
            return False
        if digest == self._loaded:
            self._refused = b""
            return False
        try:
            self.context = self.make()
        except OSError as error:  # the files may be valid: the next call tries again
            message = "the changed TLS files cannot be read for now: %s"
            self._limit.log(_log, logging.ERROR, message, explained(error))
            return False
        except ConfigError as error:
            self._refused = digest
            _log.error(
                "the changed TLS files are not used, what was loaded before stays in force: %s",
                error,
            )
            return False
        self._loaded = digest
        self.reloads += 1
        _log.info("TLS files have changed: new connections use %s", ", ".join(map(str, self.files)))
        return True


def _digest(paths: Sequence[Path]) -> bytes:
    """Return the digest of all contents; a file that cannot be read has none.

    Raises: OSError when too many files are open.
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError as error:
            if none_left(error):
                raise
            digest.update(b"-:")
        else:
            digest.update(b"%d:" % len(data) + data)
    return digest.digest()
