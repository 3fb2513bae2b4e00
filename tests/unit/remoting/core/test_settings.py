"""Declaring, filling and printing a configuration."""

# ruff: noqa: RUF009  (setting() and group() are attrs field specifiers)
from __future__ import annotations

import enum
from pathlib import Path

import attrs
import pytest

from triomq.remoting.core.java_keys import KeyTable, Reason
from triomq.remoting.core.properties_file import Entry, format_properties, parse_entries
from triomq.remoting.core.settings import (
    ADDRESSES,
    BOOLEAN,
    INTEGER,
    OPTIONAL_TEXT,
    PATH,
    TEXT,
    ConfigError,
    Loaded,
    Source,
    choice,
    group,
    load,
    render,
    setting,
)


class Colour(enum.Enum):
    RED = "DEEP_RED"
    BLUE = "BLUE"


@attrs.frozen(kw_only=True)
class Inner:
    root: Path = setting("rootDir", PATH, Path("/var/store"), "a directory")
    log: Path = setting(
        "logDir",
        PATH,
        attrs.Factory(lambda self: self.root / "log", takes_self=True),
        "below the root",
    )


@attrs.frozen(kw_only=True)
class Outer:
    port: int = setting("listenPort", INTEGER, 10911, "a port", low=0, high=65_535)
    period: int = setting("period", INTEGER, 30, "clamped", low=10, high=60, clamp=True)
    size: int = setting("size", INTEGER, 40, "a multiple of 20", low=20, step=20)
    flag: bool = setting("flag", BOOLEAN, True, "a flag")
    name: str = setting("name", TEXT, "x", "a name")
    note: str = setting("note", OPTIONAL_TEXT, "", "anything")
    colour: Colour = setting("colour", choice(Colour), Colour.RED, "a colour")
    servers: tuple[str, ...] = setting("servers", ADDRESSES, (), "addresses")
    inner: Inner = group(Inner)


ROWS = """key\ttype\tdefault 5.5.0\tdefault 4.9.4\tclass\tstatus\treason\tvalues
poolSize\tint\t16\t16\tBrokerConfig\tmeaningless\tthreads\t
queueSize\tint\t16\t16\tBrokerConfig\tmeaningless\tthreads\t
wheelEnable\tboolean\ttrue\t-\tBrokerConfig\tnot yet\ttimer\t
wheelSlots\tint\t10\t-\tBrokerConfig\tnot yet\ttimer\t
popMode\tString\tPULL\t-\tBrokerConfig\tnot yet\tpop\tok=pull
aclEnable\tboolean\tfalse\tfalse\tBrokerConfig\tnot yet\tauth\trefuse=true
files\tString\t\t-\tBrokerConfig\tnot yet\tauth\trefuse=*
"""


@pytest.fixture
def known(tmp_path: Path) -> KeyTable:
    path = tmp_path / "keys.tsv"
    path.write_text(ROWS)
    return KeyTable(
        "mqtest",
        path,
        {
            "threads": Reason("pools"),
            "timer": Reason("timer messages"),
            "pop": Reason("POP"),
            "auth": Reason("access control", "remove it"),
        },
    )


def fill(text: str, known: KeyTable) -> Loaded[Outer]:
    return load(Outer, [Source("x.conf", tuple(parse_entries(text)))], known)


def test_defaults_without_sources(known: KeyTable) -> None:
    loaded = load(Outer, [], known)
    assert loaded.config == Outer()
    assert loaded.config.inner.log == Path("/var/store/log")
    assert loaded.warnings == ()


def test_values_are_typed_and_trimmed(known: KeyTable) -> None:
    text = (
        "listenPort = 0 \nflag=FALSE\nname=  a b"
        " \nnote=\ncolour=deep_red\nservers=a:1;b:2;a:1\nrootDir=/r\nsize=41\nperiod=5"
    )
    config = fill(text, known).config
    assert config == Outer(
        port=0,
        flag=False,
        name="a b",
        note="",
        colour=Colour.RED,
        servers=("a:1", "b:2"),
        inner=Inner(root=Path("/r")),
        size=60,
        period=10,
    )
    assert config.inner.log == Path("/r/log")


def test_later_sources_win_and_origins_tell(known: KeyTable) -> None:
    loaded = load(
        Outer,
        [
            Source("a.conf", (Entry("listenPort", "1", 7), Entry("name", "n", 8))),
            Source("option -p", (Entry("listenPort", "2"),)),
        ],
        known,
    )
    assert loaded.config.port == 2
    assert loaded.origins == {"listenPort": "option -p", "name": "a.conf:8"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listenPort=abc", "x.conf:1: listenPort=abc: not a whole number; use 0 to 65535"),
        ("\nlistenPort=70000", "x.conf:2: listenPort=70000: out of range; use 0 to 65535"),
        ("size=0", "x.conf:1: size=0: out of range; use 20 or more"),
        ("flag=yes", "x.conf:1: flag=yes: neither true nor false; write one of the two"),
        ("name=", "x.conf:1: name=: empty; give it a text"),
        ("colour=green", "x.conf:1: colour=green: not one of its values; write DEEP_RED or BLUE"),
        (
            "servers=a",
            (
                "x.conf:1: servers=a: address 'a' has no port; write host:port, for example"
                " 127.0.0.1:9876"
            ),
        ),
        (
            "rootDir=/a,/b",
            (
                "x.conf:1: rootDir=/a,/b: several directories; this version keeps one, so name a"
                " single one"
            ),
        ),
        (
            "rootDir=${TRIOMQ_NO_SUCH}/a",
            (
                "x.conf:1: rootDir=${TRIOMQ_NO_SUCH}/a: using ${TRIOMQ_NO_SUCH}, and the"
                " environment has no TRIOMQ_NO_SUCH; give it a path"
            ),
        ),
        (
            "listenprt=1",
            (
                "x.conf:1: unknown key listenprt; did you mean listenPort?"
                " (docs/configuration/mqtest.md lists every setting)"
            ),
        ),
        (
            "wheelEnabled=true",
            (
                "x.conf:1: unknown key wheelEnabled; did you mean wheelEnable?"
                " (docs/configuration/mqtest.md lists every setting)"
            ),
        ),
        (
            "zzzzzz=1",
            (
                "x.conf:1: unknown key zzzzzz; remove it; docs/configuration/mqtest.md lists every"
                " setting"
            ),
        ),
        (
            "aclEnable = TRUE ",
            "x.conf:1: aclEnable=TRUE is not offered by this version (access control); remove it",
        ),
        (
            "files=a;b",
            "x.conf:1: files=a;b is not offered by this version (access control); remove it",
        ),
    ],
)
def test_bad_entries_name_place_cause_and_fix(text: str, message: str, known: KeyTable) -> None:
    with pytest.raises(ConfigError) as caught:
        fill(text, known)
    assert str(caught.value) == message


def test_constructor_checks_ranges_too() -> None:
    with pytest.raises(ConfigError, match="listenPort=70000: out of range; use 0 to 65535"):
        Outer(port=70_000)
    assert Outer(period=1000, size=21) == Outer(period=60, size=40)


def test_keys_without_effect_are_summed_up_in_two_lines(known: KeyTable) -> None:
    loaded = fill(
        "queueSize=1\npoolSize=3\nwheelEnable=true\nwheelSlots=7\npopMode=POP\naclEnable=false",
        known,
    )
    assert loaded.config == Outer()
    assert loaded.warnings == (
        (
            "ignored, no meaning here: poolSize, queueSize"
            " (docs/configuration/java-keys-mqtest.md says why)"
        ),
        (
            "known to Java but not offered by this version, so without effect: popMode (POP);"
            " wheelEnable, wheelSlots (timer messages)"
        ),
    )


def test_values_at_which_nothing_is_missed_are_silent(known: KeyTable) -> None:
    assert fill("wheelEnable=false\npopMode=PULL\naclEnable=false", known).warnings == ()


def test_paths_know_home_and_environment(known: KeyTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/q")
    monkeypatch.setenv("DATA", "/data")
    assert fill("rootDir=${user.home}/s", known).config.inner.root == Path("/home/q/s")
    assert fill("rootDir=~/s", known).config.inner.root == Path("/home/q/s")
    assert fill("rootDir=${DATA}/s", known).config.inner.root == Path("/data/s")


def test_render_and_load_are_inverse(known: KeyTable) -> None:
    config = Outer(
        port=1,
        flag=False,
        name="é = x",
        colour=Colour.BLUE,
        servers=("[::1]:9",),
        inner=Inner(root=Path("/a b")),
    )
    assert list(render(config)) == [
        "listenPort",
        "period",
        "size",
        "flag",
        "name",
        "note",
        "colour",
        "servers",
        "rootDir",
        "logDir",
    ]
    assert fill(format_properties(render(config)), known).config == config
