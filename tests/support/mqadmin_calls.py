"""Run mqadmin inside the test's own loop: the program without its process."""

from __future__ import annotations

import io
import json
from typing import Any, TextIO

import attrs

from triomq.client.mqadmin.command_line import complain, understand
from triomq.client.mqadmin.execution import perform
from triomq.client.mqadmin.general_help import general_answer, show
from triomq.testing import InProcessCluster


@attrs.frozen
class Done:
    """What one call left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document that it printed."""
        assert self.code in (0, 1, 3), self
        assert self.out.count("\n") == 1, self
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The rows of the first table that it printed, title row included, cells split at two
        blanks.
        """
        table = self.out.split("\n\n")[0]
        return [[cell for cell in line.split("  ") if cell.strip()] for line in table.splitlines()]

    @property
    def columns(self) -> list[str]:
        return [title.strip() for title in self.rows[0]]


async def run(words: list[str], stdout: TextIO, stderr: TextIO) -> int:
    """Do what the program does, in the current Trio loop."""
    try:
        asked = general_answer(words) or understand(words)
        return (
            show(asked, stdout) if isinstance(asked, str) else await perform(asked, stdout, stderr)
        )
    except Exception as error:
        return complain(error, words, stdout, stderr)


async def mqadmin(*words: object) -> Done:
    """``mqadmin WORDS…``, its exit code and what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    code = await run([str(word) for word in words], out, err)
    return Done(code, out.getvalue(), err.getvalue())


async def call(cluster: InProcessCluster, *words: object) -> Done:
    """``mqadmin WORDS…`` at a cluster of the test."""
    return await mqadmin(*words, "-n", cluster.namesrv_address)


async def document(cluster: InProcessCluster, *words: object) -> Any:
    """What ``mqadmin WORDS… --json`` prints at a cluster of the test."""
    return (await call(cluster, *words, "--json")).document


def failed(done: Done, code: int, *words: str) -> bool:
    """Whether the call failed as it should: exit code, nothing on stdout, one line on stderr with
    these words.
    """
    assert done.code == code, done
    assert done.out == "", done
    assert done.err.count("\n") == 1, done
    assert done.err.startswith("mqadmin: "), done
    for word in words:
        assert word in done.err, done
    return True
