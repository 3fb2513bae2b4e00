"""Too many open files: for this process, or at one chosen call."""

from __future__ import annotations

import errno
import io
import os
import resource
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def no_files_left(but: int = 0) -> Iterator[None]:
    """Let this process open no file and no socket, or only a few, inside the block; those that are
    open stay good.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(but + 1)]
    for number in free:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def opening_fails(folder: Path, number: int) -> Iterator[list[Path]]:
    """Let the opening of the file number ``number`` (from 1) in ``folder`` fail, by Python or by
    OpenSSL, and yield the files that were opened.
    """
    opened: list[Path] = []
    system_open, load_pair, load_authorities = (
        io.open,
        ssl.SSLContext.load_cert_chain,
        ssl.SSLContext.load_verify_locations,
    )

    def count(path: Any) -> None:
        if isinstance(path, Path) and path.is_relative_to(folder):
            opened.append(path)
            if len(opened) == number:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    def open_or_fail(path: Any, *more: Any, **named: Any) -> Any:
        count(path)
        return system_open(path, *more, **named)

    def load_pair_or_fail(context: ssl.SSLContext, certificate: Path, *more: Any) -> None:
        count(certificate)
        load_pair(context, certificate, *more)

    def load_authorities_or_fail(context: ssl.SSLContext, path: Path) -> None:
        count(path)
        load_authorities(context, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", open_or_fail)
        patch.setattr(ssl.SSLContext, "load_cert_chain", load_pair_or_fail)
        patch.setattr(ssl.SSLContext, "load_verify_locations", load_authorities_or_fail)
        yield opened
