"""A pipeline, run as a process by the tests that kill it; its one argument is a JSON object.

file: of the pipeline; local: folder for Spark; hold: method of a class of the pipeline, as
``HadoopFiles.rename``; calls: how often the method is called before the process holds, in the
middle of a batch, and writes the arguments to the file ``marker``; among: only calls count whose
arguments have this text; after: it holds after the call.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.spark_peers import open_session
from triomq.client.pipeline.dead_letters import DeadLetters
from triomq.client.pipeline.run import run_until_stopped
from triomq.client.pipeline.spec_file import read_spec
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.parquet import ParquetTable

HOLDABLE = {owner.__name__: owner for owner in (DeadLetters, HadoopFiles, ParquetTable)}


def hold_at(name: str, calls: int, among: str, after: bool, marker: Path) -> None:
    owner, _, method = name.partition(".")
    original = getattr(HOLDABLE[owner], method)
    left = [calls]

    def held(*arguments: Any) -> Any:
        left[0] -= among in str(arguments)
        result = original(*arguments) if left[0] >= 0 or after else None
        if left[0] < 0:
            marker.write_text(str(arguments[1:]))
            time.sleep(600)
        return result

    setattr(HOLDABLE[owner], method, held)


def main(
    file: str,
    local: str,
    marker: str = "",
    hold: str = "",
    calls: int = 0,
    among: str = "",
    after: bool = False,
) -> int:
    session = open_session(Path(local))
    if hold:
        hold_at(hold, calls, among, after, Path(marker))
    return run_until_stopped(session, read_spec(Path(file)))


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
