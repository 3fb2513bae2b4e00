"""Files of pipelines: what is read, and how mistakes are named."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from triomq.client.pipeline import commands
from triomq.client.pipeline.__main__ import main
from triomq.client.pipeline.command_line import pipeline_parser
from triomq.client.pipeline.core.errors import SpecError
from triomq.client.pipeline.core.spec import SourceSpec, Spec, resolved
from triomq.client.pipeline.export_sdp import module_text
from triomq.client.pipeline.init_file import write_file
from triomq.client.pipeline.spec_check import check_spec
from triomq.client.pipeline.spec_file import read_spec, spec_of

MINIMAL: dict[str, Any] = {
    "pipeline": {"name": "orders"},
    "source": {"name_server": "127.0.0.1:9876", "topics": ["orders"]},
    "decode": {"format": "string"},
    "dead_letters": {"path": "dead"},
    "sink": {"path": "lake"},
    "run": {"checkpoint": "checkpoint"},
}


FRAMED = {"format": "avro", "schema": __file__, "framing": "confluent"}
MATCHES_ALL = {"name_server": "127.0.0.1:9876", "pattern": ".*"}


def changed(**sections: Any) -> dict[str, Any]:
    """The minimal file with keys added: ``source__start="latest"``, ``rules=[…]``."""
    tree = {name: dict(section) for name, section in MINIMAL.items()}
    for name, value in sections.items():
        section, _, key = name.partition("__")
        if key:
            tree.setdefault(section, {})[key] = value
        else:
            tree[section] = value
    return tree


def spec(**sections: Any) -> Spec:
    return spec_of(changed(**sections), Path("/data/orders.toml"))


def written(folder: Path, tree: dict[str, Any]) -> Path:
    path = folder / "orders.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_a_file_with_everything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    path.write_text(
        """
[pipeline]
name = "orders"
[source]
name_server = "ns1:9876;ns2:9876"
pattern = "orders-.*"
start = 2026-01-31T00:00:00Z
[source.options]
groupId = "lake"
maxOffsetsPerTrigger = 1000
failOnDataLoss = false
secretKey = "env:S"
accessKey = "a"
[decode]
format = "protobuf"
schema = "shop.desc"
message = "shop.Order"
framing = "confluent"
schemas = { 7 = "v7.desc" }
[[rules]]
name = "amount"
check = "amount > 0"
[[rules]]
set = { total = "amount * count" }
[[joins]]
path = "s3a://tables/customers"
on = "customer"
how = "inner"
[dead_letters]
topic = "orders-dead"
[sink]
path = "/lake/orders"
kind = "delta"
mode = "changes"
key = ["id"]
partition_by = []
keep_days = 30
[[windows]]
name = "hourly"
time = "born"
length = "1 hour"
slide = "10 minutes"
watermark = "2 hours"
group_by = ["customer"]
totals = { n = "count(*)" }
path = "hourly"
[run]
trigger = "available_now"
checkpoint = "checkpoint"
options = { "spark.sql.shuffle.partitions" = 2 }
"""
    )
    found = read_spec(path)
    assert found.source.start_options() == {"startingTimestamp": "1769817600000"}
    assert found.source.reader_options(environment={}) == {
        "nameServer": "ns1:9876;ns2:9876",
        "subscribePattern": "orders-.*",
        "groupId": "lake",
        "maxOffsetsPerTrigger": "1000",
        "failOnDataLoss": "false",
        "secretKey": "env:S",
        "accessKey": "a",
    }
    assert found.decode.schema == str(tmp_path / "shop.desc")
    assert found.joins[0].path == "s3a://tables/customers"
    assert found.joins[0].on == ("customer",)
    dead = found.dead_letters
    assert dead is not None
    assert (dead.kind, dead.topic, dead.name_server) == (
        "topic",
        "orders-dead",
        "ns1:9876;ns2:9876",
    )
    assert dead.options == {"secretKey": "env:S", "accessKey": "a"}
    assert (found.sink.path, found.sink.key, found.sink.partition_by) == (
        "/lake/orders",
        ("id",),
        (),
    )
    assert found.windows[0].table.path == str(tmp_path / "hourly")
    assert found.run.options == {"spark.sql.shuffle.partitions": "2"}
    assert found.path == str(path)


def test_yaml_has_the_same_keys(tmp_path: Path) -> None:
    tree = changed(source__start={"orders": {"broker-a": {0: 23, "*": -2}}})
    found = read_spec(written(tmp_path, tree))
    assert found.source.start_options() == {
        "startingOffsets": '{"orders": {"broker-a": {"0": 23, "*": -2}}}'
    }
    assert attrs.evolve(found, path="") == attrs.evolve(
        spec_of(tree, tmp_path / "orders.toml"), path=""
    )


def test_the_word_on_is_no_truth_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    options = "{header: true, n: 5, x: off}"
    joins = f"joins:\n- path: customers\n  on: customer\n  options: {options}\n"
    path.write_text(yaml.safe_dump(MINIMAL) + joins)
    (join,) = read_spec(path).joins
    assert (join.on, join.options) == (("customer",), {"header": "true", "n": "5", "x": "off"})


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"sorce": {}}, "sorce: there is no such section; did you mean 'source'?"),
        ({"source__topcis": ["a"]}, "source.topcis: there is no such key; did you mean 'topics'?"),
        ({"source__topics": 5}, "source.topics: 5 is not valid here; expected a list of texts"),
        (
            {"decode__format": "jsn"},
            (
                'decode.format: "jsn" is not valid here; expected one of bytes, string, json, avro,'
                " protobuf; did you mean 'json'?"
            ),
        ),
        (
            {"sink__keep_days": "30"},
            'sink.keep_days: "30" is not valid here; expected a whole number',
        ),
        (
            {"sink__keep_days": True},
            "sink.keep_days: true is not valid here; expected a whole number",
        ),
        ({"sink__keep_days": 0}, "sink.keep_days: 0 is not valid here; expected a number of days"),
        ({"sink__options": {"a": [1]}}, "sink.options.a: [1] is not valid here; expected a text"),
        ({"sink": {}}, "sink: a table needs exactly one of path and topic"),
        ({"sink__topic": "t"}, "sink: a table needs exactly one of path and topic"),
        ({"run": {}}, "run.checkpoint: the key is missing; add it: folder of"),
        (
            {"run__trigger": "5"},
            "run.trigger: \"5\" is not valid here; expected 'available_now', or",
        ),
        ({"source__pattern": "("}, 'source.pattern: "(" is not valid here; expected a regular'),
        ({"source__pattern": "a"}, "source: it needs topics or a pattern, and not both"),
        (
            {"source__start": "2026-01-31T00:00:00"},
            (
                "expected earliest, latest, group, a time with zone as 2026-01-31T00:00:00Z, or a"
                " table of offsets (the zone is missing: add Z for UTC)"
            ),
        ),
        ({"rules": {"check": "a"}}, 'rules: {"check": "a"} is not valid here; expected at most'),
        (
            {"rules": [{"chekc": "a"}]},
            "rules[1].chekc: there is no such key; did you mean 'check'?",
        ),
        ({"pipeline": {"name": "a b"}}, 'pipeline.name: "a b" is not valid here; expected letters'),
        ({"pipeline": {}}, "pipeline.name: null is not valid here; expected a text"),
        (
            {
                "windows": [
                    {
                        "name": "h",
                        "length": "1h",
                        "watermark": "1 hour",
                        "totals": {"n": "1"},
                        "path": "p",
                    }
                ]
            },
            'windows[1].length: "1h" is not valid here; expected a duration as',
        ),
        ({"sink__path": "x" * 100, "sink__kind": "y" * 200}, "yyy…"),
    ],
)
def test_a_mistake_is_named_with_its_key(
    sections: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = written(tmp_path, changed(**sections))
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert said in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.toml", b"x = ", "it is not TOML"),
        ("a.toml", b"\xff", "it is not UTF-8"),
        ("a.yaml", b"a: [", "it is not YAML"),
        ("a.yaml", b"- a", "it has no sections"),
        ("a.yaml", b"[" * 5000, "it is"),
        ("a.toml", b"#" * (1 << 20) + b"#", "it is larger than 1 MiB"),
        ("a.toml", b"", "pipeline: the section is missing; add [pipeline]"),
    ],
)
def test_what_is_no_pipeline_is_refused(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SpecError, match=r"."):
        read_spec(tmp_path / "none.toml")
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"source__options": {"subscribe": "x"}}, "source.options.subscribe"),
        ({"source__options": {"pullDepht": "4"}}, "source"),
        ({"source__options": {"accessKey": "env:NOT_SET"}}, "source.options"),
        ({"source__start": "group"}, "source"),
        ({"decode__format": "json"}, "decode.schema"),
        ({"decode__schema": "x"}, "decode.schema"),
        ({"decode__message": "a.B"}, "decode.message"),
        ({"decode__framing": "confluent"}, "decode.framing"),
        ({"decode__schemas": {"1": "x"}}, "decode.schemas"),
        ({"decode__registry": "http://r"}, "decode.registry"),
        ({"decode": FRAMED}, "decode.framing"),
        (
            {"decode": {**FRAMED, "schemas": {"1": __file__}, "registry_login": "a:b"}},
            "decode.registry_login",
        ),
        ({"decode": {**FRAMED, "schemas": {"x": "a"}}}, "decode.schemas"),
        ({"decode": {**FRAMED, "schemas": {"1": "none"}}}, "decode.schemas.1"),
        (
            {"decode": {**FRAMED, "schemas": {"1": __file__}, "registry": "http://r"}},
            "decode.framing",
        ),
        ({"rules": [{"name": "x"}]}, "rules[1]"),
        ({"rules": [{"check": "a", "keep": "b"}]}, "rules[1]"),
        ({"rules": [{"set": {}}]}, "rules[1].set"),
        ({"rules": [{"set": {"mq_time": "1"}}]}, "rules[1].set.mq_time"),
        ({"rules": [{"set": {"a": " "}}]}, "rules[1].set.a"),
        ({"joins": [{"path": "x", "on": []}]}, "joins[1].on"),
        ({"sink__mode": "changes"}, "sink.key"),
        ({"sink__key": ["a"]}, "sink.key"),
        ({"sink__mode": "changes", "sink__key": ["a"], "sink__keep_days": 3}, "sink.keep_days"),
        ({"dead_letters": {"path": "d", "mode": "changes", "key": ["a"]}}, "dead_letters.mode"),
        ({"dead_letters": {"topic": "d", "keep_days": 3}}, "dead_letters.keep_days"),
        ({"dead_letters": {"topic": "d", "options": {"sendDepht": 4}}}, "dead_letters.options"),
        ({"dead_letters": {"topic": "orders"}}, "dead_letters.topic"),
        ({"source": MATCHES_ALL, "dead_letters": {"topic": "orders-dead"}}, "dead_letters.topic"),
        ({"source": MATCHES_ALL, "sink": {"topic": "clean"}}, "sink.topic"),
        ({"sink__path": "dead/lake"}, "dead_letters.path"),
        ({"sink__path": "checkpoint"}, "run.checkpoint"),
        ({"run__options": {"sql.shuffle.partitions": 2}}, "run.options.sql.shuffle.partitions"),
        ({"run__options": {"spark.x": "env:NOT_SET"}}, "run.options"),
    ],
)
def test_what_keys_say_together_is_checked(sections: dict[str, Any], key: str) -> None:
    mistakes = check_spec(spec(**sections), {})
    assert [mistake.key for mistake in mistakes] == [key]
    assert check_spec(spec(), {}) == []


def test_an_exported_window_has_the_columns_of_joins() -> None:
    window = {"name": "w", "length": "1 hour", "watermark": "1 hour", "totals": {"n": "count(*)"}}
    joined = spec(joins=[{"path": "x", "on": "a"}], windows=[{**window, "path": "totals"}])
    text = module_text(joined, "orders.toml")
    assert "return totals_of(apply_joins(good_rows(), SPEC.joins), SPEC.windows[0])" in text


def test_a_pattern_that_leaves_out_what_is_written_is_good() -> None:
    (mistake,) = check_spec(spec(source=MATCHES_ALL, sink={"topic": "a|b"}), {})
    pattern = mistake.fix.partition("pattern = '")[2][:-1]
    assert check_spec(spec(source=MATCHES_ALL | {"pattern": pattern}, sink={"topic": "a|b"})) == []
    assert check_spec(spec(source=MATCHES_ALL | {"pattern": pattern}, sink={"topic": "a"})) != []
    other = {"topic": "orders", "name_server": "elsewhere:9876"}
    assert check_spec(spec(sink=other)) == [], "a topic of another cluster"


def test_framed_bodies_of_every_format_may_have_a_registry(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "struct", "fields": [{"name": "id", "type": "long"}]}')
    for more in ({"format": "avro"}, {"format": "json"}, {"format": "protobuf", "message": "a.B"}):
        framed = {**FRAMED, **more, "schema": str(schema), "registry": "http://r"}
        assert check_spec(spec(decode=framed), {}) == []
        both = check_spec(spec(decode={**framed, "schemas": {"1": str(schema)}}), {})
        assert [mistake.key for mistake in both] == ["decode.framing"]


def test_windows_have_names_of_their_own() -> None:
    window = {"length": "1 hour", "watermark": "1 hour", "totals": {"mq_n": "count(*)"}}
    windows = [{**window, "name": "rows", "path": f"w{number}"} for number in range(2)]
    keys = {mistake.key for mistake in check_spec(spec(windows=windows), {})}
    assert keys == {
        *("windows", "windows[1].name", "windows[2].name"),
        *("windows[1].totals.mq_n", "windows[2].totals.mq_n"),
    }


def test_rows_that_may_be_bad_need_a_place() -> None:
    tree = changed()
    del tree["dead_letters"]
    path = Path("/data/orders.toml")
    assert [each.key for each in check_spec(spec_of(tree, path), {})] == ["dead_letters"]
    tree["decode"] = {"format": "bytes"}
    assert check_spec(spec_of(tree, path), {}) == []
    tree["rules"] = [{"check": "mq_key IS NOT NULL"}]
    assert [each.key for each in check_spec(spec_of(tree, path), {})] == ["dead_letters"]


def test_values_come_from_the_environment() -> None:
    options = {"accessKey": "env:KEY", "secretKey": "env:SECRET", "other": "plain"}
    assert resolved(options, {"KEY": "k"}) == {**options, "accessKey": "k"}
    with pytest.raises(ValueError, match="environment variable KEY is not set"):
        resolved(options, {})


def test_times_of_the_start_have_a_zone() -> None:
    source = SourceSpec(name_server="a:1", topics=("t",))
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    assert attrs.evolve(source, start=moment).start_options() == {
        "startingTimestamp": "1769817600000"
    }
    assert attrs.evolve(source, start="2026-01-31T01:00:00+01:00").start_options() == {
        "startingTimestamp": "1769817600000"
    }


@pytest.mark.parametrize("given", ["maxOffsetsPerTrigger", "maxbytespertrigger"])
def test_a_batch_has_a_limit(given: str) -> None:
    source = SourceSpec(name_server="a:1", topics=("t",))
    assert source.limit_options() == {"maxBytesPerTrigger": "256m"}
    assert attrs.evolve(source, options={given: "1000"}).limit_options() == {}


def test_init_writes_a_file_without_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    write_file(str(path), 'orders"', "127.0.0.1:9876", force=False)
    found = read_spec(path)
    assert found.source.topics == ('orders"',)
    write_file(str(path), "orders", "127.0.0.1:9876", force=True)
    (tmp_path / "orders.schema.json").write_text(
        '{"type": "struct", "fields": [{"name": "id", "type": "long"}]}'
    )
    assert check_spec(read_spec(path), {}) == []
    with pytest.raises(SpecError, match="the file exists"):
        write_file(str(path), "orders", "127.0.0.1:9876", force=False)
    with pytest.raises(SpecError, match="init writes TOML"):
        write_file(str(tmp_path / "orders.yaml"), "orders", "a:1", force=False)


def test_help_and_the_check_of_a_file_do_not_import_spark(tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    write_file(str(path), "orders", "127.0.0.1:9876", force=False)
    program = (
        "import sys\n"
        "from triomq.client.pipeline.__main__ import main\n"
        "try:\n"
        "    print(main(sys.argv[1:]))\n"
        "except SystemExit as error:\n"
        "    print(error.code)\n"
        "print([name for name in ('pyspark', 'trio', 'yaml', 'pyarrow') if name in sys.modules])\n"
    )
    for words, code in ((["--help"], 0), (["check", "--file-only", str(path)], 1), (["x"], 2)):
        done = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-2:] == [str(code), "[]"], done.stdout


def test_the_words_of_a_backfill() -> None:
    parsed = pipeline_parser().parse_args(
        ["backfill", "a.toml", "broker-a=/a", "broker-b=/b=c", "--option", "snapshot=true"]
    )
    assert parsed.stores == [("broker-a", "/a"), ("broker-b", "/b=c")]
    assert parsed.option == [("snapshot", "true")]
    for words in (
        ["backfill", "a.toml"],
        ["backfill", "a.toml", "/data/store"],
        ["compact", "a.toml", "--before", "yesterday"],
        ["replay", "a.toml", "--limit", "0"],
        ["run", "a.toml", "--trig", "available_now"],
    ):
        with pytest.raises(SystemExit) as caught:
            pipeline_parser().parse_args(words)
        assert caught.value.code == 2


def test_every_failure_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(written(tmp_path, changed()))
    assert main(["infer", file]) == 2
    assert "infer makes schemas of JSON" in capsys.readouterr().err
    assert main(["status", file]) == 1
    assert capsys.readouterr().err.count("\n") == 1

    def fail(options: object) -> None:
        raise OSError("disk on fire\nreally")

    monkeypatch.setitem(commands.ACTIONS, "status", fail)
    assert main(["status", file]) == 1
    assert capsys.readouterr().err == (
        "mqpipeline: unexpected OSError: disk on fire; --verbose shows where\n"
    )
    assert main(["status", file, "--verbose"]) == 1
    assert "Traceback" in capsys.readouterr().err
    tree = changed(source__options={"accessKey": "env:NOT_SET"})
    tree["decode"] = {"format": "json", "schema": "none.json"}
    assert main(["infer", str(written(tmp_path, tree))]) == 2
    assert "environment variable NOT_SET is not set" in capsys.readouterr().err
