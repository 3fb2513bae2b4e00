"""The checkers behind ``tests/test_tidy.py`` find what they look for, in small made-up trees."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from docstring_rules import docstrings, section_errors, shared_class_names
from import_rules import circles, folder_graph, import_graph, layer_errors
from loss_rules import counting_tests


def trees(**sources: str) -> dict[str, ast.Module]:
    """Return syntax trees by module; ``__`` in a name stands for a dot."""
    return {name.replace("__", "."): ast.parse(source) for name, source in sources.items()}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("broker.store.log.commit_log", "from triomq.client import Producer"),
        ("broker.store.log.commit_log", "import remoting.protocol"),
        ("broker.store.log.commit_log", "from . import codes"),
        ("remoting.protocol.codes", "import triomq.broker"),
        ("client.mqadmin.cli", "from triomq import Producer"),
        ("broker.store.io.disk", "from triomq.broker.store.log.scan import scan"),
        ("broker.store.io.disk", "from triomq.broker.store.indexing import indexer"),
        ("remoting.protocol.headers.send", "from triomq.remoting.protocol.bodies import route"),
        ("client.receiving.inbox", "from triomq.client.sending.sender import Sender"),
        ("client.core.session", "from triomq.client.sdk.push_consumer import PushConsumer"),
        ("remoting.core.settings", "from triomq.remoting.server.server import Server"),
    ],
)
def test_an_import_against_the_layers_is_found(module: str, line: str) -> None:
    modules = dict.fromkeys(["broker.store.indexing.indexer", "remoting.protocol.bodies.route"])
    assert list(layer_errors(module, ast.parse(line), modules)) != []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("client.mqadmin.cli", "from triomq import __version__"),
        ("client", "from triomq.client.sdk.push_consumer import PushConsumer"),
        ("client.sdk.push_consumer", "from triomq.client.core.session import Session"),
        ("broker.store.io.disk", "from triomq.broker.store.core import errors"),
    ],
)
def test_an_import_along_the_layers_is_allowed(module: str, line: str) -> None:
    modules = dict.fromkeys(["broker.store.core.errors", "client.core.session"])
    assert list(layer_errors(module, ast.parse(line), modules)) == []


def test_circles_are_found_through_several_modules_and_imports_for_types() -> None:
    sources = trees(
        broker__a="from triomq.broker.b import B",
        broker__b="from triomq.broker import c",
        broker__c="if TYPE_CHECKING:\n    from triomq.broker.a import A",
        broker__d="def f():\n    from triomq.broker.e import E",
        broker__e="import triomq.broker.d",
        broker__f="from triomq.broker.a import A",
    )
    assert circles(import_graph(sources)) == [
        ["broker.a", "broker.b", "broker.c"],
        ["broker.d", "broker.e"],
    ]


def test_circles_of_folders_are_found_where_no_modules_import_each_other() -> None:
    sources = trees(
        broker__app="from triomq.broker.store.log import Log",
        broker__store="",
        broker__store__log="from triomq.broker.errors import StoreError",
        broker__errors="",
    )
    graph = import_graph(sources)
    assert circles(graph) == []
    assert circles(folder_graph(graph, {"broker.store"})) == [["broker", "broker.store"]]


def test_a_tree_without_circles_has_none() -> None:
    sources = trees(
        broker__a="from triomq.broker.b import B\nfrom triomq.broker.c import C",
        broker__b="from triomq.broker.c import C",
        broker__c="import triomq.broker.c",
    )
    assert import_graph(sources)["broker.a"] == {"broker.b", "broker.c"}
    assert circles(import_graph(sources)) == []


@pytest.mark.parametrize(
    "text",
    [
        "Store it. Errors: OSError.",
        "Raises StoreFailure if the disk fails.",
        "Returns the place.",
        "Yields records.",
        "Wait. Checkpoint: yes.",
        "Wait. Checkpoint: only if it is full.",
        "Store it. No checkpoint.",
        "Store it.\n\natomic: no checkpoint.",
        "Store it.\n\nArgs:\n    x: a number",
        "Store it.\n\nSources: CommitLog.java",
        "Store it. Checkpoint: never. Raises: OSError.",
        "Store it.\n\nSource: A.java.\nSource: B.java.",
    ],
)
def test_other_grammars_of_docstrings_are_found(text: str) -> None:
    (docstring,) = [found for _, found in docstrings(ast.parse(f'def f():\n    """{text}"""'))]
    assert list(section_errors(docstring)) != []


@pytest.mark.parametrize(
    "text",
    [
        "Raise the limit; the caller raises StoreFailure when it returns too late.",
        "Write them.\n\nRaises: DiskFull.\nCheckpoint: maybe, to ask the disk.\nSource: A.java.",
        "Note the checkpoint file and its source.",
    ],
)
def test_the_grammar_of_the_style_page_is_accepted(text: str) -> None:
    assert list(section_errors(text)) == []


def test_a_class_name_in_two_modules_is_found() -> None:
    sources = trees(
        broker__a="class Wire: ...\nclass Once: ...",
        client__b="class Wire: ...\ndef f():\n    class Once: ...",
    )
    assert shared_class_names(sources) == {"Wire": ["broker.a", "client.b"]}


COUNTING = """
import pytest
from topic_reader import read_topic
MARK
def check(got): assert sorted(got) == [b"1", b"2"]
def test_with_a_helper(): check(read())
def test_itself(): assert {message.body for message in read()} == {b"1", b"2"}
@pytest.mark.loss
def test_marked(): assert [one.message_id for one in read()] == sent
def test_one_body(): assert read().body == b"1"
def test_settings(): assert sorted(names) == ["a", "b"]
"""


def test_a_test_that_counts_messages_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "test_counting.py"
    for mark in ("pytestmark = pytest.mark.compat", "pytestmark = [pytest.mark.spark]"):
        file.write_text(COUNTING.replace("MARK", mark))
        assert counting_tests(file) == {
            "test_with_a_helper": False,
            "test_itself": False,
            "test_marked": True,
        }
    file.write_text(COUNTING.replace("MARK", ""))
    assert counting_tests(file) == {}
