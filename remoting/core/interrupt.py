"""Recognise Ctrl-C in the outermost frame of a program."""

from __future__ import annotations

EXIT_INTERRUPTED = 130
"""the exit code that a shell reports for a program that SIGINT ended"""


def interrupted(error: BaseException) -> bool:
    """Return whether an error is or contains KeyboardInterrupt: nurseries raise it in a group."""
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt) is not None
    )
