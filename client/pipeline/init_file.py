"""Which file does ``mqpipeline init`` write?"""

from __future__ import annotations

import json
from pathlib import Path

from triomq.client.pipeline.core.errors import SpecError
from triomq.client.pipeline.core.spec import NAME

TEMPLATE = """\
# A pipeline: topics -> decode -> rules -> tables. All keys: docs/pipeline.md.
# Relative paths are relative to this file. A value "env:NAME" is taken from the environment.

[pipeline]
name = {name}

[source]
name_server = {name_server}
topics = [{topic}]
start = "earliest"              # or "latest", "group", a time as "2026-01-31T00:00:00Z"

[decode]
format = "json"                 # or "bytes", "string", "avro", "protobuf"
schema = {schema}

# Rules, in order. Conditions are SQL on the columns of the schema and on mq_topic, mq_time, ...
# [[rules]]
# name = "amount is positive"   # a row for which the check is not true becomes a dead letter
# check = "amount > 0"
#
# [[rules]]
# keep = "status <> 'test'"     # good rows for which this is not true are dropped
#
# [[rules]]
# set = {{ total = "amount * count" }}

[dead_letters]                  # where rows go that cannot be decoded, or that fail a check
path = {dead_letters}

[sink]
path = {lake}
kind = "parquet"                # or "delta" (Spark 4.2)
keep_days = 365                 # `mqpipeline compact` deletes older days

# [[windows]]
# name = "hourly"
# length = "1 hour"
# watermark = "10 minutes"
# totals = {{ messages = "count(*)" }}
# path = "lake/hourly"

[run]
trigger = "10 seconds"          # or "available_now": read what is there and end
checkpoint = "checkpoint"       # the pipeline's position: keep it with the tables
"""


def write_file(path: str, topic: str, name_server: str, *, force: bool) -> None:
    """Write the first file of a pipeline. Raises: SpecError."""
    target = Path(path)
    if target.suffix != ".toml":
        raise SpecError(path, "", "init writes TOML", "name a file that ends with .toml")
    if target.exists() and not force:
        raise SpecError(path, "", "the file exists", "name another one, or replace it with --force")
    name = topic if NAME.fullmatch(topic) else "pipeline"
    values = {
        "name": name,
        "name_server": name_server,
        "topic": topic,
        "schema": f"{name}.schema.json",
        "dead_letters": f"dead-letters/{name}",
        "lake": f"lake/{name}",
    }
    text = TEMPLATE.format(
        **{key: json.dumps(text, ensure_ascii=False) for key, text in values.items()}
    )
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        fix = "check the folder and its rights"
        raise SpecError(path, "", f"it cannot be written ({error.strerror})", fix) from None
