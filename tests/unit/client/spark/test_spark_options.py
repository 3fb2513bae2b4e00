"""Options and schemas are checked while a query is planned, with errors that name the rule."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import tls_files
from option_texts import meanings, table_cell
from pyspark.sql.types import StructType

from triomq.client.spark.columns import COLUMNS, Column, check_schema
from triomq.client.spark.errors import OptionError
from triomq.client.spark.offset_options import EARLIEST, LATEST
from triomq.client.spark.offsets import Queue
from triomq.client.spark.option_table import AccessOptions, Option
from triomq.client.spark.options import OPTIONS, SourceOptions, parse_options
from triomq.client.spark.sink.sink_columns import SINK_COLUMNS, SinkColumn
from triomq.client.spark.sink.sink_options import SINK_OPTIONS, SinkOptions
from triomq.client.spark.sources.source import RocketMQDataSource
from triomq.remoting.client.access import Access
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.tls.client import Tls

DOCS = Path(__file__).resolve().parents[4] / "docs" / "spark.md"


def parse(streaming: bool = True, **options: str) -> SourceOptions:
    given = {"nameServer": "localhost:9876", "subscribe": "orders", **options}
    return parse_options(
        {key.replace("__", ".").lower(): value for key, value in given.items() if value != "-"},
        streaming=streaming,
    )


def test_defaults_of_a_stream() -> None:
    options = parse()
    assert options.name_server == ("localhost:9876",)
    assert options.topics == ("orders",)
    assert options.starting_offsets.of(Queue("orders", "b", 0)) == LATEST
    assert options.fail_on_data_loss
    assert (
        options.pull_batch_size,
        options.pull_max_bytes,
        options.pull_depth,
        options.record_batch_bytes,
    ) == (4096, 1 << 20, 4, 1 << 20)
    assert (options.poll_timeout_ms, options.min_records_per_partition) == (120_000, 10_000)
    assert not options.commit_group_offsets
    assert options.group.startswith("spark-rocketmq-source-")
    assert (options.expression, options.filter_hash) == (("TAG", "*"), None)


def test_a_batch_query_begins_at_the_earliest_and_ends_at_the_latest() -> None:
    options = parse(streaming=False)
    assert options.starting_offsets.of(Queue("orders", "b", 0)) == EARLIEST
    assert options.ending_offsets.of(Queue("orders", "b", 0)) == LATEST


def test_values() -> None:
    options = parse(
        nameServer="a:1; b:2",
        subscribe="orders, flights,orders",
        groupId="g",
        pullMaxBytes="256k",
        recordBatchBytes="2m",
        pollTimeoutMs="30s",
        unavailableBrokerTimeout="2m",
        tags="B || A",
        maxOffsetsPerTrigger="500",
        maxBytesPerTrigger="64m",
        failOnDataLoss="FALSE",
    )
    assert options.name_server == ("a:1", "b:2")
    assert options.subscribe == ("orders", "flights")
    assert (options.group, options.commit_group_offsets) == ("g", True)
    assert (options.pull_max_bytes, options.record_batch_bytes) == (256 << 10, 2 << 20)
    assert (options.poll_timeout_ms, options.unavailable_broker_timeout_ms) == (30_000, 120_000)
    assert (options.expression, options.max_offsets_per_trigger, options.fail_on_data_loss) == (
        ("TAG", "A || B"),
        500,
        False,
    )
    assert options.filter_hash == parse(tags="A||B").filter_hash != parse(tags="A").filter_hash


def test_a_filter_in_sql() -> None:
    options = parse(filterSql="amount > 5", minOffsetsPerTrigger="10", maxTriggerDelay="1s")
    assert options.expression == ("SQL92", "amount > 5")
    assert options.filter_hash not in (None, parse(tags="x").filter_hash)
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_ms) == (10, 1000)


def test_aliases() -> None:
    options = parse_options(
        {
            "rocketmq.namesrv.addr": "h:1",
            "topic": "t",
            "kafka.group.id": "g",
            "includeProperties": "true",
        },
        streaming=True,
    )
    assert (options.name_server, options.topics, options.group, options.include_headers) == (
        ("h:1",),
        ("t",),
        "g",
        True,
    )


def test_assign() -> None:
    options = parse(
        subscribe="-", assign='{"orders":{"broker-a":[1,0]},"flights":{"broker-b":[2]}}'
    )
    assert options.assign == (
        Queue("flights", "broker-b", 2),
        Queue("orders", "broker-a", 0),
        Queue("orders", "broker-a", 1),
    )
    assert options.topics == ("flights", "orders")


def test_starting_offsets_fall_back_to_the_nearest_star() -> None:
    start = parse(
        startingOffsets='{"orders":{"broker-a":{"0":23,"*":-2},"*":7},"*":-1}',
        subscribe="orders,flights",
    ).starting_offsets
    wanted = {
        ("orders", "broker-a", 0): 23,
        ("orders", "broker-a", 5): -2,
        ("orders", "broker-b", 0): 7,
        ("flights", "broker-a", 0): -1,
    }
    assert {queue: start.of(Queue(*queue)) for queue in wanted} == wanted
    assert (
        parse(startingOffsets='{"orders":{"broker-a":{"0":23}}}').starting_offsets.of(
            Queue("orders", "broker-a", 1)
        )
        is None
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nameServer": "-"}, "'nameServer' is missing"),
        ({"nameServer": "localhost"}, "'nameServer' = 'localhost'.*no port"),
        ({"subscribe": "-"}, "exactly one of the options 'subscribe', 'subscribePattern' and"),
        ({"assign": '{"orders":{"b":[0]}}'}, "exactly one"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": "a b"}, "'a b' is not a topic name"),
        ({"assign": "[0]", "subscribe": "-"}, "JSON like"),
        ({"assign": '{"orders":{"b":[-1]}}', "subscribe": "-"}, "not negative"),
        ({"maxOffsetPerTrigger": "5"}, "unknown option.*did you mean 'maxOffsetsPerTrigger'"),
        ({"zzz": "5"}, "unknown option 'zzz'; known are"),
        ({"subscribePattern": "o.*"}, "exactly one of .*'subscribePattern' and 'assign'"),
        ({"subscribePattern": "o(", "subscribe": "-"}, "not a regular expression"),
        ({"maxBytesPerTrigger": "1023"}, "it must be a size.*from 1024"),
        ({"tags": "A", "filterSql": "a > 1"}, "one of the options 'tags' and 'filterSql'"),
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "'minOffsetsPerTrigger' = 5 is more than",
        ),
        ({"kafka__bootstrap__servers": "x"}, "belongs to Spark's Kafka source"),
        ({"startingOffsets": "newest"}, "must be earliest, latest, group or JSON"),
        ({"startingOffsets": "group"}, "'startingOffsets' = 'group' needs 'groupId'"),
        ({"startingOffsetsByTimestamp": "5"}, "JSON like .* of times"),
        ({"startingOffsetsByTimestamp": '{"flights":{"*":5}}'}, "does not read: flights"),
        ({"startingOffsets": '{"orders":{"b":{"0":-3}}}'}, "does not fit"),
        ({"startingOffsets": '{"orders":5}'}, "does not fit"),
        ({"startingOffsets": '{"orders":{"b":{"zero":5}}}'}, "'zero' is not a queue number"),
        (
            {"startingOffsets": '{"others":{"b":{"0":5}}}'},
            "topics that the query does not read: others",
        ),
        ({"endingOffsets": "latest"}, "no meaning for a stream"),
        ({"failOnDataLoss": "no"}, "must be true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"pullBatchSize": "1e3"}, "whole number"),
        ({"pullMaxBytes": "1x"}, "size such as"),
        ({"pollTimeoutMs": "-1"}, "time such as"),
        ({"unavailableBrokerPolicy": "hope"}, "must be wait or fail"),
        ({"commitGroupOffsets": "true"}, "needs 'groupId'"),
        ({"groupId": " "}, "it is empty"),
        ({"groupId": "a", "kafka__group__id": "b"}, "mean the same"),
    ],
)
def test_bad_options_name_the_fix(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "cannot begin at latest"),
        ({"startingOffsets": '{"orders":{"b":{"0":-1}},"*":-2}'}, "cannot begin at latest"),
        ({"endingOffsets": "earliest"}, "must be latest or JSON"),
        ({"endingOffsets": '{"orders":{"b":{"0":-2}}}'}, "does not fit"),
        ({"maxOffsetsPerTrigger": "5"}, "no meaning for a batch query"),
    ],
)
def test_bad_options_of_a_batch_query(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(streaming=False, **options)


def test_spark_s_own_reader_options_pass() -> None:
    assert parse(path="x").topics == ("orders",)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("value binary, ofset bigint", "no column 'ofset'; did you mean 'offset'"),
        ("value int", "cannot be int; declare it as binary or string"),
        ("offset int", "declare it as bigint"),
        ("key string NOT NULL", "null for some messages"),
        ("value binary, value string", "names a column twice"),
    ],
)
def test_bad_schemas_name_the_fix(schema: str, message: str) -> None:
    source = RocketMQDataSource({"nameserver": "localhost:9876", "subscribe": "orders"})
    with pytest.raises(OptionError, match=message):
        source.streamReader(ddl(schema))


def ddl(text: str) -> StructType:
    """Return a schema from DDL text, without a JVM."""
    names = {"binary": "binary", "int": "integer", "bigint": "long", "string": "string"}
    fields = []
    for column in text.split(", "):
        name, kind, *rest = column.split()
        fields.append({"name": name, "type": names[kind], "nullable": not rest, "metadata": {}})
    return StructType.fromJson({"type": "struct", "fields": fields})


def test_any_choice_of_columns_is_a_schema() -> None:
    for column in COLUMNS:
        for kind in column.types:
            check_schema(
                StructType.fromJson(
                    {
                        "type": "struct",
                        "fields": [
                            {
                                "name": column.name,
                                "type": kind.jsonValue(),
                                "nullable": True,
                                "metadata": {},
                            }
                        ],
                    }
                )
            )
    with pytest.raises(OptionError, match="no columns"):
        check_schema(StructType([]))


def test_the_default_schema_follows_include_headers() -> None:
    base = {"nameServer": "localhost:9876", "subscribe": "orders"}
    assert RocketMQDataSource(base).schema().fieldNames() == [
        "key",
        "value",
        "topic",
        "brokerName",
        "queueId",
        "offset",
        "timestamp",
        "tags",
    ]
    assert (
        RocketMQDataSource({**base, "includeHeaders": "true"}).schema().fieldNames()[-1]
        == "headers"
    )


def option_row(option: Option) -> str:
    default = f"`{option.default}`" if option.default is not None else "–"
    if option.batch_default:
        default += f"; batch: `{option.batch_default}`"
    queries = "both" if option.stream and option.batch else "stream" if option.stream else "batch"
    aliases = f" (also `{'`, `'.join(option.aliases)}`)" if option.aliases else ""
    return (
        f"| `{option.name}` | {default} | {queries} |"
        f" {table_cell(meanings(SourceOptions, AccessOptions)[option.name])}{aliases} |"
    )


def sink_option_row(option: Option) -> str:
    default = f"`{option.default}`" if option.default is not None else "–"
    text = meanings(SourceOptions, AccessOptions, SinkOptions)[option.name]
    return f"| `{option.name}` | {default} | {table_cell(text)} |"


def column_row(column: Column | SinkColumn) -> str:
    aliases = (
        f" (also `{'`, `'.join(column.aliases)}`)"
        if isinstance(column, SinkColumn) and column.aliases
        else ""
    )
    return (
        f"| `{column.name}`{aliases} |"
        f" {' or '.join(kind.simpleString() for kind in column.types)} |"
        f" {column.meaning} |"
    )


def test_the_docs_list_every_option_and_column_as_they_are() -> None:
    """If this test fails, copy the missing rows to docs/spark.md."""
    lines = DOCS.read_text().splitlines()
    rows = [*map(option_row, OPTIONS.values()), *map(column_row, COLUMNS)]
    rows += [*map(sink_option_row, SINK_OPTIONS.values()), *map(column_row, SINK_COLUMNS)]
    assert [row for row in rows if row not in lines] == []


def test_tls_and_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tls_files.write(tmp_path)
    config = tmp_path / "tls.properties"
    config.write_text("tls.client.trustCertPath=ca.pem\ntls.client.checkHostName=false\n")
    monkeypatch.setenv("ROCKET_SECRET", "12345678")
    base = {"nameServer": "a:9876", "subscribe": "T"}

    def access(**more: str) -> Access:
        parsed = parse_options({**base, **more}, streaming=True)
        assert "12345678" not in repr(parsed)
        return pickle.loads(pickle.dumps(parsed)).access

    assert access() == Access()
    assert access(useTls="true").tls == Tls()
    assert access(tlsCaFile=str(files.ca)).tls == Tls(ca_file=files.ca)
    assert access(tlsConfigFile=str(config)).tls == Tls(ca_file=files.ca, check_host_name=False)
    assert access(accessKey="me", secretKey="env:ROCKET_SECRET").credentials == Credentials(
        access_key="me", secret_key="12345678"
    )
    monkeypatch.setenv("TRIOMQ_TLS", str(config))
    assert access().tls == Tls(ca_file=files.ca, check_host_name=False)
    monkeypatch.delenv("TRIOMQ_TLS")
    for wrong, words in {
        ("useTls", "false", "tlsCaFile", "x"): "leave one of them out",
        ("tlsConfigFile", "x", "tlsCaFile", "x"): "give one of",
        ("accessKey", "me"): "belong together",
        (
            "accessKey",
            "me",
            "secretKey",
            "env:NOBODY_HAS_THIS",
        ): "NOBODY_HAS_THIS, which is not set",
        ("tlsCaFile", "/no/such.pem"): r"/no/such\.pem: cannot be read",
    }.items():
        with pytest.raises(OptionError, match=words):
            access(**dict(zip(wrong[::2], wrong[1::2])))
