"""The program ``mqadmin``.

Start-up is most of a command's time, so this module imports only the list of commands; the parser,
and then the command, are imported on demand.
"""

from __future__ import annotations

import contextlib
import os
import sys

from triomq.client.mqadmin.general_help import general_answer, show
from triomq.remoting.core.interrupt import EXIT_INTERRUPTED, interrupted


def main() -> None:
    """Run ``mqadmin`` and end the process.

    ``os._exit`` skips Python's clean-up, which frees the objects of every module one by one and
    takes a seventh of a command's time.
    """
    code = run_words(sys.argv[1:])
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def run_words(words: list[str]) -> int:
    """Do what the words say; return the exit code."""
    try:
        if words[:1] == ["__complete"]:
            return _complete(words[1:])
        text = general_answer(words)
        return show(text, sys.stdout) if text is not None else _run_command(words)
    except BaseException as error:
        if interrupted(error):
            return EXIT_INTERRUPTED
        raise


def _complete(words: list[str]) -> int:
    # Not for general help: start-up time.
    from triomq.client.mqadmin.completion import completed

    text = completed(words)
    return show(text, sys.stdout) if text else 0


def _run_command(words: list[str]) -> int:
    # Not for general help: start-up time.
    from triomq.client.mqadmin.command_line import complain, understand

    try:
        asked = understand(words)
        if isinstance(asked, str):
            return show(asked, sys.stdout)
        # Not for help and wrong usage: start-up time.
        from triomq.client.mqadmin.execution import perform_alone

        return perform_alone(asked, sys.stdout, sys.stderr)
    except Exception as error:  # the outermost frame of a program: every failure becomes one line
        return complain(error, words, sys.stdout, sys.stderr)


if __name__ == "__main__":
    main()
