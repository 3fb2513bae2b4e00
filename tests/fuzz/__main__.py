"""``make fuzz SECONDS=60``: fuzz every target for its share of the time. Exit code 1 for a finding.

Inputs that reach new code are kept in ``.fuzz/TARGET``, so that the next run continues there. A
finding is kept in ``.fuzz/findings``; once it is understood, add it to
``tests/fuzz/corpus/TARGET`` as ``WHAT.ok`` or ``WHAT.refused``, after its right outcome.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

from seeds import INPUT_BYTES_MAX, seeds, words  # noqa: E402
from targets import TARGETS  # noqa: E402

WORK = HERE.parent.parent / ".fuzz"
INPUT_SECONDS_MAX = 5  # a single input that takes longer is a finding
MEMORY_MIB_MAX = 1500


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__.splitlines()[0])
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)"
    )
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together (60)")
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - TARGETS.keys():
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    chosen = arguments.targets or list(TARGETS)
    (WORK / "findings").mkdir(parents=True, exist_ok=True)
    (WORK / "words").write_text(words())
    inputs = seeds()
    found = [
        name
        for name in chosen
        if not fuzz(name, inputs.get(name, []), max(1, arguments.seconds // len(chosen)))
    ]
    if found:
        print(f"fuzz: findings in {', '.join(found)}: see {WORK / 'findings'}")
    return 1 if found else 0


def fuzz(name: str, inputs: list[bytes], seconds: int) -> bool:
    """Fuzz one target; return False for a finding."""
    folder = WORK / name
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(inputs):
        (folder / f"seed-{number:03}").write_bytes(data)
    corpus = HERE / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    options = {
        "max_total_time": seconds,
        "max_len": INPUT_BYTES_MAX,
        "timeout": INPUT_SECONDS_MAX,
        "rss_limit_mb": MEMORY_MIB_MAX,
        "dict": WORK / "words",
        "artifact_prefix": f"{WORK}/findings/{name}-",
    }
    command = [
        sys.executable,
        str(HERE / "one_target.py"),
        name,
        *(f"-{key}={value}" for key, value in options.items()),
        str(folder),
        str(corpus),
    ]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    ended = re.search(r"Done (\d+) runs in (\d+) second", done.stdout)
    if done.returncode == 0 and ended:
        print(f"fuzz: {name}: {int(ended[1]):,} inputs in {ended[2]} s, nothing found", flush=True)
        return True
    print(f"fuzz: {name}: exit code {done.returncode}\n{done.stdout[-4000:]}", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
