"""A task's reading and writing in one process: ``without_spark.py <name servers> <topic>``.

Prints the count of messages, read and written again, and the foreign packages that were loaded.
"""

import json
import sys

import pyarrow as pa

from triomq.spark import RocketMQDataSource


def main(name_servers: str, topic: str) -> None:
    options = {"nameServer": name_servers, "subscribe": topic}
    source = RocketMQDataSource(options)
    reader = source.reader(source.schema())
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    table = pa.Table.from_batches(batches).select(["value", "key"])
    sink = RocketMQDataSource({"nameServer": name_servers, "topic": f"{topic}-alone"})
    fields = [field for field in source.schema() if field.name in ("value", "key")]
    schema = type(source.schema())(sorted(fields, key=lambda field: field.name == "key"))
    done = sink.writer(schema, False).write(iter(table.to_batches()))
    loaded = {name.partition(".")[0] for name in sys.modules}
    foreign = loaded & {"msgspec", "trio", "cryptography", "rich", "zlib_ng", "pandas"}
    print(
        json.dumps(
            {
                "read": table.num_rows,
                "written": sum(done.acknowledged.values()),
                "loaded": sorted(foreign),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
