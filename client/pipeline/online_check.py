"""Which mistakes of a spec do the servers know? Topics, their permissions, and limits of sizes.

Nothing is sent to a topic: that a user may write is known from the topic's permission, not from the
rules of access (ACL).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from triomq.client.pipeline.core.errors import SpecError
from triomq.client.pipeline.core.spec import Spec, TableSpec, resolved
from triomq.client.pipeline.spec_check import tables_of
from triomq.client.spark.driver_client import DriverClient
from triomq.client.spark.errors import SourceError
from triomq.client.spark.name_servers import RouteReader, writable
from triomq.client.spark.options import parse_options
from triomq.client.spark.query_begin import readable_bounds
from triomq.client.spark.sink.sink_options import parse_sink_options
from triomq.remoting.client.access import Access
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request

REQUEST_SECONDS = 3.0
SIZE_SETTING = "maxMessageSize"


def check_online(spec: Spec) -> list[SpecError]:
    """Return the mistakes of a spec that its servers know; ``check_spec`` has found none.

    It takes a few seconds for a server that does not answer.
    """
    check = OnlineCheck(spec)
    check.check_source()
    for key, table in tables_of(spec):
        if table.topic is not None:
            check.check_topic(key, table)
    return check.mistakes


@attrs.define
class OnlineCheck:
    """The check of one spec."""

    spec: Spec
    mistakes: list[SpecError] = attrs.field(factory=list)
    read: set[tuple[str, str]] = attrs.field(factory=set)
    """topics that are read, and the addresses of their brokers"""
    source_bytes: int | None = None
    """the largest message that a broker of the source takes; None if none has told"""

    def add(self, key: str, cause: object, fix: str) -> None:
        self.mistakes.append(SpecError(self.spec.path, key, str(cause), fix))

    def check_source(self) -> None:
        """Check that the topics can be read now."""
        source = self.spec.source
        options = parse_options(source.reader_options() | source.start_options(), streaming=True)
        cluster = DriverClient(options)
        try:
            bounds = readable_bounds(options, cluster)
            addresses = cluster.addresses
            if not bounds:
                topics = ", ".join(sorted(cluster.known_topics))
                self.add(
                    "source.topics",
                    f"no queue of {topics} can be read",
                    "give the topic the permission to read: mqadmin topic permission",
                )
        except SourceError as error:
            self.add("source", error, "check name_server, topics and access of the source")
            return
        finally:
            cluster.close()
        self.read = {(queue.topic, addresses[queue.broker]) for queue in bounds}
        sizes = limits({address for _, address in self.read}, options.access)
        self.source_bytes = max(sizes.values(), default=None)

    def check_topic(self, key: str, table: TableSpec) -> None:
        """Check that a topic can be written to, is not read, and takes what the source has."""
        topic = table.topic or ""
        given = {"nameServer": table.name_server or "", **resolved(table.options)}
        options = parse_sink_options(given, streaming=False)
        try:
            with RouteReader(options.name_server, options.access) as servers:
                route = servers.routes([topic], writable)[topic]
        except SourceError as error:
            self.add(f"{key}.name_server", error, "check name_server and access of the table")
            return
        if route is None or not route.queues():
            self.add(
                f"{key}.topic",
                f"topic {topic} {'does not exist' if route is None else 'takes no messages'}",
                f"create it with `mqadmin topic create -c <cluster> -t {topic}`, or correct its"
                " permission",
            )
            return
        if any((topic, address) in self.read for address in route.addresses.values()):
            self.add(f"{key}.topic", "the pipeline reads this topic", "name another topic")
        for address, size in limits(set(route.addresses.values()), options.access).items():
            if self.source_bytes is not None and size < self.source_bytes:
                self.add(
                    f"{key}.topic",
                    f"broker {address} takes messages of {size} bytes, and the source has up to"
                    f" {self.source_bytes}; it will refuse larger ones",
                    f"raise {SIZE_SETTING} of that broker",
                )


def limits(addresses: set[str], access: Access) -> Mapping[str, int]:
    """Return the largest message that brokers take, in bytes, without brokers that do not tell."""
    found = {}
    for address in sorted(addresses):
        try:
            connection = BlockingConnection(address, timeout=REQUEST_SECONDS, **access.options())
        except (RemotingError, OSError):
            continue
        try:
            answer = connection.invoke(request(RequestCode.GET_BROKER_CONFIG), REQUEST_SECONDS)
        except (RemotingError, OSError):
            continue
        finally:
            connection.close()
        if answer.code != ResponseCode.SUCCESS:
            continue  # the settings are for administrators
        lines = bytes(answer.body).decode("utf-8", "replace").splitlines()
        settings = dict(line.partition("=")[::2] for line in lines)
        if settings.get(SIZE_SETTING, "").isdecimal():
            found[address] = int(settings[SIZE_SETTING])
    return found
