"""Every input of the fuzzing corpus has the outcome of its name: ``.ok`` is read, ``.refused`` is
refused with RemoteProtocolError.

The seeds of fuzzing, captured frames and an instance of every class, are read by every target.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from seeds import seeds, words  # noqa: E402
from targets import TARGETS  # noqa: E402

from triomq.remoting.core.errors import RemoteProtocolError  # noqa: E402

FILES = sorted(path for path in (HERE / "corpus").rglob("*.*") if path.is_file())


def outcome(target: str, data: bytes) -> str:
    try:
        TARGETS[target](data)
    except RemoteProtocolError:
        return "refused"
    return "ok"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_corpus(path: Path) -> None:
    assert outcome(path.parent.name, path.read_bytes()) == path.suffix[1:]


def test_the_corpus_has_both_outcomes_for_every_target() -> None:
    outcomes = {(path.parent.name, path.suffix[1:]) for path in FILES}
    assert (
        outcomes
        >= {(target, end) for target in TARGETS for end in ("ok", "refused")} - NEVER_REFUSED
    )
    assert {path.parent.name for path in FILES} == set(TARGETS)


NEVER_REFUSED = {("properties", "refused")}  # Java's reader takes any text, and so does ours


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_read(target: str) -> None:
    for data in seeds()[target]:
        assert outcome(target, data) == "ok", data


def test_there_is_a_dictionary() -> None:
    assert '"consumerGroup"\n' in words()


def test_a_reader_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "json", lambda data: {}[data])
    with pytest.raises(KeyError):
        outcome("json", b"x")
