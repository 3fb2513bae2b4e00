"""The house rules, as tests. Each failure prints the rule and the places; ``CONTRIBUTING.md`` says
why they exist.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator

import pytest
from commit_rules import commit_errors, message_errors
from docstring_rules import docstrings, section_errors, shared_class_names
from import_rules import circles, folder_graph, import_graph, layer_errors
from loss_rules import counting_tests
from source_tree import ROOT, dotted, imported, source_trees

SOURCE_LINES_MAX = 600
BANNED_MODULE_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "misc"}
RETIRED_WORDS = {
    *("look", "looks", "looked", "looking", "patience", "pace", "told", "duty", "duties"),
    *("pile", "passenger", "aboard", "journey", "ungreeted", "obituary", "vanish"),
}
"""words of ADR 11 that no name has any more; ``look_up`` and words of prose are free"""
BANNED_CLASS_WORDS = re.compile(r"(Manager|Controller|Service|Impl|Util|Utils|Helper|Info)$")

# Sans-IO: bytes or values in, values out.
PURE = (
    *(
        f"broker/replication/{name}.py"
        for name in ("transfer", "master_link", "slave_link", "replicas", "rates")
    ),
    *(
        "broker/roles/acting_rules.py",
        "broker/roles/held_tables.py",
        "broker/services/delay_times.py",
        "broker/services/timers/timer_rules.py",
        "broker/services/timers/timer_schedule.py",
        "broker/store/core/clock_guard.py",
        "broker/store/compaction/newest_by_key.py",
        "broker/store/timer/timer_check.py",
        "broker/store/timer/timer_record.py",
        "broker/store/timer/wheel.py",
    ),
    *(
        f"namesrv/controller/{name}.py"
        for name in (
            *("commands", "election", "liveness", "replicated_state", "state", "transitions"),
        )
    ),
    *(
        f"remoting/grpc/{name}.py"
        for name in (
            *("call_head", "call_statistics", "frame_budgets", "frames", "grpc_settings"),
            *("header_decoder", "header_encoder", "header_entry", "http2_connection"),
            *("http2_session", "liveness", "message_reader", "status"),
        )
    ),
    *(
        f"remoting/access/{name}.py"
        for name in (
            *("administration", "changes", "control", "documents", "needs", "resources", "rules"),
            "users",
        )
    ),
    "remoting/audit/audit_entry.py",
    *(
        f"remoting/messaging/{name}.py"
        for name in (
            *("call_credentials", "checks", "client_settings", "delivered_message"),
            *("route_answers", "sent_message", "status_codes", "writable_queues"),
        )
    ),
    *(
        f"client/receiving/pop/{name}.py"
        for name in ("durations", "hold_limit", "lease_times", "source_turns")
    ),
    *(f"client/mqadmin/top/{name}.py" for name in ("details", "frame", "tabs")),
    *(
        f"client/mqadmin/bench/{name}.py"
        for name in ("bench_report", "latency_histogram", "load_plan", "received_counts")
    ),
    "client/admin/cluster_view.py",
    *("remoting/monitor/http.py", "remoting/monitor/metrics.py"),
    *(
        "remoting/protocol",
        "namesrv/broker_registration.py",
        "namesrv/controller/raft/",
        "namesrv/controller/raft_records.py",
        "namesrv/controller/raft_wire.py",
        "namesrv/min_broker_id.py",
        "namesrv/routed_queues.py",
        "namesrv/route_views.py",
        "namesrv/routes.py",
        "client/admin/cluster_files/difference.py",
        "client/admin/cluster_files/fields.py",
        "client/admin/cluster_files/items.py",
        "client/admin/cluster_files/reading.py",
        "client/proxy/broker_directory.py",
        "client/proxy/joined_clients.py",
        "client/core/retry.py",
        "client/receiving/allocation.py",
        "client/spans/attributes.py",
        "client/spark/offsets.py",
        "client/trace/trace_events.py",
        "client/core/trace_records.py",
    ),
)
IMPURE_MODULES = {
    "trio",
    "socket",
    "os",
    "time",
    "random",
    "logging",
    "select",
    "selectors",
    "threading",
    "subprocess",
}


ONE_NAME = {
    "Call": "a command as it was typed; a call through the portal",
    "ConnectionLost": "the SDK's error for users, made of the one below",
    "Delivery": "delivery of due delayed messages to their topics; of pulled messages to handlers",
    "Option": "an option of a program, of a command, of a Spark query",
    "QueueLocks": "the broker's table of locks; the consumer's side of it",
    "Refused": "a call that the service refuses; why POP refuses an acknowledgement",
    "RequestTimeout": "the SDK's error for users, made of the one below",
}
"""Classes that several modules define -> why one name is right."""

TREES = source_trees()
FILES = list(TREES)
MODULES = {dotted(path): tree for path, tree in TREES.items()}


def test_the_top_level_has_only_what_it_is_for() -> None:
    """``pyspark_triomq`` is there because PySpark finds data sources by this prefix."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    folders = {path.partition("/")[0] for path in tracked if "/" in path and path[0] != "."}
    assert folders == {
        *("remoting", "namesrv", "broker", "client", "triomq", "pyspark_triomq"),
        *("tests", "deploy", "docs", "examples"),
    }


def test_imports_go_one_way() -> None:
    errors = [
        error for name, tree in MODULES.items() for error in layer_errors(name, tree, MODULES)
    ]
    assert errors == []


def test_no_modules_import_each_other() -> None:
    """A circle hides which of two modules is the foundation; an import for types counts too."""
    assert circles(import_graph(MODULES)) == []


def test_no_folders_import_each_other() -> None:
    """Ground and roof of a package do not share a folder: docs/architecture.md has the floors."""
    packages = {dotted(path) for path in TREES if path.name == "__init__.py"}
    assert circles(folder_graph(import_graph(MODULES), packages)) == []


def test_sections_of_docstrings_are_spelled_in_one_way() -> None:
    """The grammar is in ``docs/style.md``."""
    errors = [
        f"{path.relative_to(ROOT)}:{line}: {error}"
        for path, tree in TREES.items()
        for line, text in docstrings(tree)
        for error in section_errors(text)
    ]
    assert errors == []


def test_a_class_name_means_one_thing() -> None:
    """``triomq.sync`` and ``triomq.aio`` repeat the names of the SDK, since they are the same
    thing.
    """
    ours = {
        name: tree
        for name, tree in MODULES.items()
        if not name.startswith(("triomq.sync", "triomq.aio"))
    }
    shared = shared_class_names(ours)
    assert {name: modules for name, modules in shared.items() if name not in ONE_NAME} == {}
    assert set(ONE_NAME) <= set(shared), "remove from ONE_NAME what is no longer needed"


def test_protocol_is_sans_io() -> None:
    errors = [
        f"{path.relative_to(ROOT)}:{line} imports {name}: pure modules take bytes and values"
        for path, tree in TREES.items()
        if str(path.relative_to(ROOT)).startswith(PURE)
        for name, line in imported(tree, runtime_only=True)
        if name.split(".")[0] in IMPURE_MODULES
    ]
    assert errors == []
    assert [path for path in PURE if not (ROOT / path).exists()] == []


def test_no_imports_inside_functions() -> None:
    """An import inside a function hides a dependency; a comment on its line or above it may give
    the reason (start-up time, optional extra).
    """
    errors = []
    for path, tree in TREES.items():
        lines = path.read_text().splitlines()
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            errors += [
                f"{path.relative_to(ROOT)}:{node.lineno}"
                for node in ast.walk(function)
                if isinstance(node, ast.Import | ast.ImportFrom)
                and not any(
                    "#" in lines[n - 1]
                    for n in (node.lineno - 1, node.lineno, node.end_lineno or 0)
                )
            ]
    assert errors == []


def test_files_stay_small_and_say_what_they_are_for() -> None:
    errors = []
    for path, tree in TREES.items():
        count = len(path.read_text().splitlines())
        if count > SOURCE_LINES_MAX:
            errors.append(
                f"{path.relative_to(ROOT)} has {count} lines; split it by idea (limit"
                f" {SOURCE_LINES_MAX})"
            )
        if count and not ast.get_docstring(tree):  # type: ignore[arg-type]
            errors.append(f"{path.relative_to(ROOT)} has no module docstring")
    assert errors == []


def test_names_are_the_field_s_own() -> None:
    errors = [
        f"module {path.relative_to(ROOT)}" for path in FILES if path.stem in BANNED_MODULE_NAMES
    ]
    errors += [
        f"class {node.name} in {path.relative_to(ROOT)}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and BANNED_CLASS_WORDS.search(node.name)
    ]
    assert errors == []


def retired_words(name: str) -> set[str]:
    """Return the retired words in a name, in snake or camel case."""
    rest = re.sub("(?i)look_?ups?", "", name)
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", rest)
    return {word.lower() for word in words} & RETIRED_WORDS


def test_no_name_has_a_retired_word() -> None:
    errors = []
    for path in FILES:
        names = {path.stem} | {
            token.string
            for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
            if token.type == tokenize.NAME
        }
        errors += [
            f"{path.relative_to(ROOT)}: {name}: docs/adr/011-vocabulary.md has the term"
            for name in sorted(names)
            if retired_words(name)
        ]
    assert errors == []


def test_the_rule_sees_a_retired_word() -> None:
    assert retired_words("LOOK_SECONDS") == {"look"}
    assert retired_words("SendPace") == {"pace"}
    assert retired_words("_told") == {"told"}
    assert (
        not retired_words("CachedLookUps") | retired_words("look_up") | retired_words("Namespace")
    )


def test_nothing_is_swallowed_or_left_open() -> None:
    errors = []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or (
                    isinstance(node.type, ast.Name)
                    and node.type.id in {"Exception", "BaseException"}
                )
                if broad and all(isinstance(statement, ast.Pass) for statement in node.body):
                    errors.append(
                        f"{path.relative_to(ROOT)}:{node.lineno} swallows every exception"
                    )
            if isinstance(node, ast.Name) and node.id == "NotImplementedError":
                errors.append(f"{path.relative_to(ROOT)}:{node.lineno} is a stub")
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in {"print", "eval", "exec"}
            ):
                if node.func.id == "print" and (
                    "admin" in str(path)
                    or path.name
                    in {
                        "__main__.py",
                        "commands.py",
                        "local.py",
                        "local_processes.py",
                        "process.py",
                        "serve.py",
                    }
                ):
                    continue
                if node.func.id == "exec" and path.match("remoting/protocol/*.py"):
                    continue  # header codecs are generated once per class, as attrs does
                errors.append(f"{path.relative_to(ROOT)}:{node.lineno} calls {node.func.id}")
    assert errors == []


CLOCKS = {
    f"{clock}{unit}"
    for clock in (
        "time",
        "monotonic",
        "perf_counter",
        "process_time",
        "thread_time",
        "clock_gettime",
    )
    for unit in ("", "_ns")
}


def clocks_kept(tree: ast.Module) -> list[int]:
    """The lines where a clock is taken, or read, when the module is imported: a simulation can't
    replace it any more. Under its own name only, so that this finds it.
    """
    lines, reached = [], list(ast.iter_child_nodes(tree))
    while reached:
        node = reached.pop()
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "time"
            and (CLOCKS | {"*"}) & {alias.name for alias in node.names}
        ):
            lines.append(node.lineno)
        if isinstance(node, ast.Import) and any(
            alias.name == "time" and alias.asname for alias in node.names
        ):
            lines.append(node.lineno)
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "time"
            and node.attr in CLOCKS
        ):
            lines.append(node.lineno)
        if isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        ):  # its body runs later, its defaults do not
            reached += [
                *node.args.defaults,
                *(default for default in node.args.kw_defaults if default is not None),
            ]
            reached += getattr(node, "decorator_list", [])
            reached += [
                inner for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom)
            ]
        else:
            reached += ast.iter_child_nodes(node)
    return lines


def test_clocks_are_read_where_they_are_used() -> None:
    """``time.monotonic()``, never ``from time import monotonic`` or a default: real time in a
    simulation makes two histories of one seed.
    """
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, tree in TREES.items()
        if not path.is_relative_to(
            ROOT / "client" / "spark"
        )  # runs in Spark's processes, with threads
        for line in clocks_kept(tree)
    ]
    assert places == []


@pytest.mark.parametrize(
    "line",
    [
        "from time import perf_counter",
        "def f():\n    from time import time",
        "def f(clock=time.time): ...",
        "class A:\n    clock = time.monotonic",
        "STARTED = time.monotonic()",
        "import time as t",
        "from time import *",
        "@limited(time.monotonic)\ndef f(): ...",
        "class A:\n    began = field(factory=time.time)",
        "f = lambda now=time.time: now",
    ],
)
def test_clock_rule_can_fail(line: str) -> None:
    assert clocks_kept(ast.parse(line)) != []
    assert (
        clocks_kept(
            ast.parse(
                "def f():\n    return time.time()\nclass A:\n    clock = field(factory=lambda:"
                " time.monotonic)"
            )
        )
        == []
    )


SERVED = ("remoting", "namesrv", "broker", "client", "triomq", "pyspark_triomq")


def reads_wall_clock(tree: ast.AST) -> bool:
    """Return whether a module calls ``time.time``, ``time.time_ns`` or a form of ``now``."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("time", "time_ns", "now", "today", "utcnow")
        and ast.unparse(node.func.value)
        in ("time", "datetime", "datetime.datetime", "datetime.date")
        for node in ast.walk(tree)
    )


def reasons(name: str) -> dict[str, str]:
    """Return a list of the folder tests: what -> why."""
    rows = (ROOT / "tests" / name).read_text().splitlines()
    return dict(row.split(": ", 1) for row in rows if row and not row.startswith("#"))


STORED_TIME = re.compile(
    r"(store|born|begin|end|last|full|flushed|log|queue|safe)_timestamp"
    r"|(first_)?(store|stored|born|newest|modified)_(ms|time)|st_mtime(_ns)?"
)
ORDERING = ("min", "max", "sorted", "sort", "bisect_left", "bisect_right", "first_not")


def called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def compares_stored_times(tree: ast.AST, function: str = "") -> set[str]:
    """Return the functions with a comparison, difference or order that names a stored time."""
    compares = (
        (isinstance(tree, ast.Compare) and not isinstance(tree.ops[0], ast.In | ast.Is | ast.IsNot))
        or (isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Sub))
        or (isinstance(tree, ast.Call) and called(tree) in ORDERING)
    )
    names = (
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name)
    )
    found = {function} if compares and any(map(STORED_TIME.fullmatch, names)) else set()
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        function = tree.name
    for node in ast.iter_child_nodes(tree):
        found |= compares_stored_times(node, function)
    return found


def test_every_comparison_of_stored_times_says_why() -> None:
    listed = reasons("stored_times.txt")
    comparing = {
        f"{path.relative_to(ROOT)} {function}"
        for path, tree in TREES.items()
        if path.relative_to(ROOT).parts[0] in SERVED and STORED_TIME.search(path.read_text())
        for function in compares_stored_times(tree)
    }
    assert comparing - listed.keys() == set(), (
        "say in tests/stored_times.txt why, or go by an offset or a steady clock"
    )
    assert listed.keys() - comparing == set(), "these do not compare one any more"
    assert all(listed.values())


def test_the_rule_sees_comparisons_of_stored_times() -> None:
    for text in (
        "a.store_timestamp < b",
        "now - stored_ms",
        "xs.sort(key=lambda x: x.born_timestamp)",
        "path.stat().st_mtime_ns >= b",
    ):
        assert compares_stored_times(ast.parse(f"def f():\n    def g():\n        {text}")) == {"g"}
    for text in ("show(a.store_timestamp)", "x = stored_ms + 1", "stored_ms is None"):
        assert compares_stored_times(ast.parse(text)) == set()


def test_every_reader_of_the_wall_clock_says_why() -> None:
    listed = reasons("wall_clocks.txt")
    reading = {
        str(path.relative_to(ROOT))
        for path, tree in TREES.items()
        if path.relative_to(ROOT).parts[0] in SERVED and reads_wall_clock(tree)
    }
    assert reading - listed.keys() == set(), (
        "say in tests/wall_clocks.txt why, or use a steady clock"
    )
    assert listed.keys() - reading == set(), "these do not read it any more"
    assert all(listed.values())


def test_the_rule_sees_a_wall_clock() -> None:
    for text in ("time.time()", "x = time.time_ns() // 2", "datetime.datetime.now(UTC)"):
        assert reads_wall_clock(ast.parse(text))
    assert not reads_wall_clock(ast.parse("time.monotonic() + trio.current_time()"))


def test_no_unfinished_marks() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert [f"{path.relative_to(ROOT)}" for path in FILES if marks.search(path.read_text())] == []


def test_logger_names_follow_the_modules() -> None:
    wrong = re.compile(r"getLogger\((?!__name__\)|\"triomq)")
    assert [str(path.relative_to(ROOT)) for path in FILES if wrong.search(path.read_text())] == []


def test_feature_marks_only_where_something_real_runs() -> None:
    """A row of docs/features.md is proven through sockets, processes or files; tests of the store
    and of delayed messages work on real files.
    """
    allowed = (
        "tests/integration",
        "tests/compat",
        "tests/compose",
        "tests/unit/broker/store",
        "tests/unit/broker/inspect",
        "tests/unit/broker/services/test_delayed_messages.py",
        "tests/property/test_store",
    )
    errors = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.feature(" in path.read_text()
        and path.name != "test_tidy.py"
        and not str(path.relative_to(ROOT)).startswith(allowed)
    ]
    assert errors == []


def silent_returns(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """Yield the lines where a test ends early without having checked anything in the same block."""

    def visit(statements: list[ast.stmt]) -> Iterator[int]:
        for index, statement in enumerate(statements):
            if isinstance(statement, ast.Return) and not any(
                isinstance(before, ast.Assert | ast.With) for before in statements[:index]
            ):
                yield statement.lineno
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for child in ast.iter_child_nodes(statement):
                    if isinstance(child, ast.ExceptHandler | ast.match_case):
                        yield from visit(child.body)
                for block in ("body", "orelse", "finalbody"):
                    yield from visit(getattr(statement, block, []))

    return visit(function.body)


def silent_tests(source: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            yield from silent_returns(node)


def after_cancelling(source: str) -> Iterator[int]:
    """Yield the lines at which a test waits after it has cancelled the nursery that it runs in
    (pytest-trio's): nothing behind them is carried out.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef) and any(
            argument.arg == "nursery" for argument in node.args.args
        ):
            cancelled = [
                call.lineno
                for call in ast.walk(node)
                if isinstance(call, ast.Call)
                and ast.unparse(call.func) == "nursery.cancel_scope.cancel"
            ]
            shielded = {
                inner
                for block in ast.walk(node)
                if isinstance(block, ast.With) and "shield=True" in ast.unparse(block.items[0])
                for inner in ast.walk(block)
            }
            yield from (
                wait.lineno
                for wait in ast.walk(node)
                if cancelled
                and isinstance(wait, ast.Await)
                and wait.lineno > min(cancelled)
                and wait not in shielded
            )


def test_no_test_waits_after_it_has_cancelled_itself() -> None:
    errors = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for line in after_cancelling(path.read_text())
    ]
    assert errors == []
    cut = (
        "async def test_x(nursery):\n    nursery.cancel_scope.cancel()\n    await sleep(0)\n   "
        " assert False\n"
    )
    assert list(after_cancelling(cut)) == [3]
    assert (
        list(
            after_cancelling(
                cut.replace("    await", "    with CancelScope(shield=True):\n        await")
            )
        )
        == []
    )


def test_no_test_ends_early_without_a_check() -> None:
    """Such a test looks passed: skip it with the reason, or leave the case out of its
    parameters.
    """
    errors = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for line in silent_tests(path.read_text())
    ]
    assert errors == []


def test_an_early_end_is_seen() -> None:
    silent = (
        "def test_x():\n    for name in ():\n        if name:\n            return\n    assert"
        " name\n"
    )
    assert list(silent_tests(silent)) == [4]
    assert list(silent_tests(silent.replace("return", "assert name; return"))) == []


def test_who_counts_messages_against_a_peer_is_marked_loss() -> None:
    """A second try would hide a lost message: CONTRIBUTING.md, "Lanes"."""
    unmarked = [
        f"{path.relative_to(ROOT)}::{name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name, loss in counting_tests(path).items()
        if not loss
    ]
    assert unmarked == [], "these tests count messages: mark them with @pytest.mark.loss"


def test_two_hundred_rows() -> None:
    rows = [
        int(row)
        for row in re.findall(
            r"^\| (\d+) \|", (ROOT / "docs" / "features.md").read_text(), re.MULTILINE
        )
    ]
    assert rows == list(range(1, 213))


def test_decisions_are_numbered() -> None:
    """The file's number, the title's, and no number twice or left out."""
    decisions = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [(int(path.name[:3]), path.read_text().partition(".")[0]) for path in decisions] == [
        (number, f"# {number}") for number in range(1, len(decisions) + 1)
    ]


def test_dependencies_are_explained() -> None:
    """Every third-party package named in pyproject.toml has its line in docs/dependencies.md."""
    project = (ROOT / "pyproject.toml").read_text()
    lists = project[project.index("dependencies = [") : project.index("[project.scripts]")]
    names = set(re.findall(r'"([A-Za-z0-9_-]+)(?:[<>=~]|")', lists)) - {"triomq"}
    page = (ROOT / "docs" / "dependencies.md").read_text()
    assert names
    assert {name for name in names if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("word", ["/wor" + "k/", "/tm" + "p/setup", "../sha" + "red"])
def test_nothing_refers_to_the_machine_it_was_written_on(word: str) -> None:
    found = subprocess.run(
        ["git", "grep", "-lF", word], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.stdout == ""


def test_new_commits_say_what_and_why() -> None:
    """Shallow clones and releases without git are checked as far as they have commits."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    assert list(commit_errors(ROOT)) == []


@pytest.mark.parametrize(
    ("message", "lines", "error"),
    [
        ("Broker: " + "x" * 65, 0, "72"),
        ("Broker: a full stop.", 0, "full stop"),
        ("Broker: a subject\nwithout a gap", 0, "empty line"),
        ("Broker: a subject\n\n" + "x" * 101, 0, "100"),
        ("Broker: a large change", 21, "no body"),
        ("Broker: " + "x" * 64, 20, None),
        ("Broker: a large change\n\nIts reason.", 21, None),
    ],
)
def test_the_rule_sees_a_message(message: str, lines: int, error: str | None) -> None:
    found = message_errors(message + "\n", lines)
    assert [error in each for each in found] == [True] if error else found == []


ANY_MAX = 292
"""uses of ``Any`` in the product; lower it when some go. What is left has one of these reasons: a
value of a library without types (Py4J, PyYAML, trio's private parts, fastavro, Redis), what a
program's own handlers and hooks pass on, documents of ``--json``, fields that attrs declares, and
the readers and writers that are made from annotations
"""


def test_any_is_rare() -> None:
    uses = [
        f"{name}:{node.lineno}"
        for name, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "Any"
    ]
    assert len(uses) <= ANY_MAX, "name the type, or `object` for a value that is only passed on"
