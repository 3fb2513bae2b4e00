"""Run SDK tests, gRPC and a real cluster with other Pythons: those of Debian's releases, each in a
root of its own.

    python tests/pythons.py [--full] [RELEASE …]        (root; apt-get install debootstrap)

``--full`` adds the unit tests. Without a release the turn goes by the day of the newest commit,
since two releases cost CI ten minutes more; each day has one release and half of the SDK's modules.

A release is made by debootstrap and kept in .pythons; wheels are brought from outside, so nothing
in there asks a package index.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".pythons"
SUITES = {"trixie": "3.13", "sid": "3.14"}
"""Debian's release -> the Python that it should have at least"""
PORTS = {"trixie": "19500-21499", "sid": "21500-23499"}
LEFT_OUT = (
    "tests/unit/client/pipeline",
    "tests/unit/client/spark",
    "tests/integration/spark",
    "tests/unit/support/test_compatibility_page.py",  # imports all tests, also those with Spark
)
UNITS = "tests/unit"
PATHS = (
    "tests/integration/grpc",
    "tests/integration/cluster/test_local_processes.py",
    "tests/integration/cluster/test_testing_cluster.py",
)
MARKS = "not compat and not slow and not spark and not compose and not hostile and not nightly"
NOT_NEEDED = (
    "pyspark",
    "build",
    "selenium",
    "fastavro",
    "flask",
    "grpcio-tools",
    "hatchling",
    "moto",
    "mypy",
    "types-",
)
"""of the development packages"""


def run(*command: object, seconds: float = 900) -> str:
    """Run a command; SystemExit with the end of its output if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(str(word) for word in command)[:200]} failed with"
            f" {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def root_of(suite: str) -> Path:
    """Make the root of a release, unless it is there."""
    folder = CACHE / suite
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        CACHE.mkdir(exist_ok=True)
        run(
            "debootstrap",
            "--variant=minbase",
            "--include=python3,python3-venv,procps",
            suite,
            folder,
        )
        (folder / "complete").touch()
    return folder


def version_of(folder: Path) -> str:
    """The Python of a root, such as 3.13."""
    return run(
        "chroot", folder, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"
    ).strip()


def requirements() -> list[str]:
    """What the tests need beside the package's own requirements."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    extras = (
        *("dev", "lz4", "zstd", "pipeline", "console", "grpc", "otel", "postgresql", "redis"),
    )
    lines = [line for extra in extras for line in wanted[extra]]
    return [line for line in lines if not line.startswith(("triomq", *NOT_NEEDED))]


def bring_wheels(folder: Path, version: str) -> None:
    """Our wheel and all that it and the tests need, for this Python."""
    wheels = folder / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT)
    (wheel,) = wheels.glob("triomq-*.whl")
    run(
        *pip,
        "download",
        "--only-binary=:all:",
        "--python-version",
        version,
        "--dest",
        wheels,
        wheel,
        *requirements(),
    )


def copy_source(folder: Path) -> None:
    """The files of the checkout that git knows, and those that it does not ignore."""
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    for name in run(
        "git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"
    ).splitlines():
        given, copy = ROOT / name, source / name
        if given.is_symlink() or given.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(given, copy, follow_symlinks=False)


def sdk_tests() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests" / "integration" / "client").glob("test_*.py")
    )


def turn_of(day: int) -> tuple[str, list[str]]:
    """The release and the modules of the SDK of a day: four days have all of both."""
    half, release = divmod(day, len(SUITES))
    return list(SUITES)[release], sdk_tests()[half % 2 :: 2]


def inside(
    folder: Path, *command: object, seconds: float = 900
) -> subprocess.CompletedProcess[str]:
    """Run a command in a root, with /proc and /dev/shm of its own; only the loopback is of interest
    to it.
    """
    mounts = (
        f"mount -t proc proc {folder}/proc && mount -t tmpfs tmpfs {folder}/dev/shm && exec chroot"
        f' {folder} "$@"'
    )
    words = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        mounts,
        "inside",
        *command,
    ]
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=seconds, check=False
    )


def test(suite: str, sdk: list[str], *, full: bool) -> tuple[str, int, str]:
    """One release from nothing to its tests, with these modules of the SDK: (Python, exit code, end
    of the output).
    """
    folder = root_of(suite)
    version = version_of(folder)
    if tuple(map(int, version.split("."))) < tuple(map(int, SUITES[suite].split("."))):
        raise SystemExit(
            f"Debian {suite} has Python {version}, not {SUITES[suite]}: name another release in"
            " SUITES"
        )
    bring_wheels(folder, version)
    copy_source(folder)
    shutil.rmtree(folder / "venv", ignore_errors=True)
    install = (
        "python3 -m venv /venv && /venv/bin/pip install --quiet --no-compile --no-index"
        " --find-links /wheels triomq[lz4,zstd] " + " ".join(f"'{line}'" for line in requirements())
    )
    done = inside(folder, "sh", "-c", install)
    if done.returncode == 0:
        paths = [*PATHS, *sdk, *(f"--ignore={path}" for path in LEFT_OUT)]
        paths += [UNITS] if full else []
        words = (
            f"cd /source && TEST_PORTS={PORTS[suite]} /venv/bin/python -m pytest -q --color=no -n 2"
            " --dist worksteal -m"
            f" '{MARKS}' {' '.join(paths)}"
        )
        done = inside(
            folder,
            "env",
            "--unset=CI",  # a root has no databases: their tests are skipped
            "HOME=/root",
            "PATH=/venv/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG=C.UTF-8",
            "sh",
            "-c",
            words,
        )
    return version, done.returncode, (done.stdout + done.stderr)[-4000:]


def day_of_the_newest_commit() -> int:
    """Whose turn it is; 0 where git or the history is missing."""
    try:
        return int(run("git", "-C", ROOT, "log", "-1", "--format=%ct")) // 86400
    except (OSError, SystemExit):
        return 0


def main() -> int:
    """Test the named releases beside each other; 1 if one fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true", help="the unit tests, too")
    parser.add_argument("suites", nargs="*", metavar="RELEASE", help=" or ".join(SUITES))
    options = parser.parse_args()
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"there is no release {', '.join(sorted(unknown))}")
    suites, sdk = options.suites, sdk_tests()
    if not suites:
        release, sdk = turn_of(day_of_the_newest_commit())
        suites = [release]
    with ThreadPoolExecutor(len(suites)) as threads:
        outcomes = list(threads.map(partial(test, sdk=sdk, full=options.full), suites))
    for suite, (version, code, output) in zip(suites, outcomes, strict=True):
        verdict = "passed" if code == 0 else "FAILED"
        shown = output.strip().splitlines()[-1] if code == 0 else output
        print(f"Python {version} of Debian {suite}: {verdict}\n{shown}")
    return int(any(code != 0 for _, code, _ in outcomes))


if __name__ == "__main__":
    sys.exit(main())
