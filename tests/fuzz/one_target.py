"""Fuzz one target with atheris: ``python tests/fuzz/one_target.py TARGET [libFuzzer options]
[folders of inputs]``.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

with atheris.instrument_imports(include=["triomq"]):
    import targets

    if sys.argv[1] == "arrow":
        targets.arrow_decoder()  # imports the Spark source

from triomq.remoting.core.errors import RemoteProtocolError  # noqa: E402


def main() -> None:
    target = targets.TARGETS[sys.argv[1]]

    def run(data: bytes) -> None:
        with contextlib.suppress(RemoteProtocolError):
            target(data)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
