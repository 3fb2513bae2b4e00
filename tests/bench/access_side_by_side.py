"""What users and rules cost sends, beside sends without them and beside Java's broker 5.5.0 with
its ACL, in one run: ``make bench-access``.

    python tests/bench/access_side_by_side.py [--seconds 3] [--rounds 5] [--warm-up 40]
        [--shapes 1x1,1x64,64x8] [--json FILE] [--no-java]

Three brokers run all the time: ours without users, ours and Java's with ``authenticationEnabled``
and ``authorizationEnabled`` and the same user, who has two rules. The load goes to one at a time,
in turns; each cell is the median of the rounds. A signature covers queue and key, so every broker
gets the same frames again and again, with a signature or without.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench_broker import call, connect, create_topic, frame, parse_shapes, signed, signed_templates
from broker_pair import TOPIC, Broker, java_server, our_server, processes, telling_of_the_dead
from side_by_side import cpu_seconds, run_shape
from verdict_table import Missing, Report, Row, surely_ending

ROOT, USER = "root:rootpw123", "bench:benchpw123"
ACCESS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"rootpw123"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"innerpw123"}',
}
AUTH = "org.apache.rocketmq.auth"
JAVA_STORES = {
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationMetadataProvider": (
        f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
}
RULES = [
    {"resource": f"Topic:{TOPIC}", "actions": ["Pub"], "decision": "Allow"},
    {"resource": "Group:bench", "actions": ["Sub"], "decision": "Allow"},
]
OFF, ON, JAVA = "ours without users", "ours", "Java"
SECONDS_MAX = 1200


def ask_root(broker: Broker, code: int, fields: dict[str, str], body: dict[str, object]) -> None:
    data = json.dumps(body).encode()
    with connect(broker.address) as sock:
        header, _ = call(sock, frame(code, signed(fields, data, ROOT), data))
    if header["code"] != 0:
        raise SystemExit(f"{broker.name} refuses request {code}: {header}")


def add_user(broker: Broker) -> None:
    """Make the user of the load, and its rules."""
    name, _, password = USER.partition(":")
    user = {"username": name, "password": password, "userType": "Normal"}
    ask_root(broker, 3001, {"username": name}, user)
    subject = f"User:{name}"
    policies = [{"policyType": "Custom", "entries": RULES}]
    ask_root(broker, 3006, {"subject": subject}, {"subject": subject, "policies": policies})


def require_refusals(broker: Broker) -> None:
    """End the run if this broker does not verify what it is about to be measured for."""
    fields = {"topic": TOPIC, "queueId": "0"}
    with connect(broker.address) as sock:
        for sign in ("", "bench:another"):
            header, _ = call(sock, frame(30, signed(fields, b"", sign)))
            if header["code"] != 16:
                raise SystemExit(f"{broker.name} does not refuse a wrong signature: {header}")


class AccessBench:
    """Rates and CPU of the brokers: (name, shape) -> one value for each round."""

    def __init__(self, brokers: dict[str, Broker], seconds: float) -> None:
        self.brokers = brokers
        self.seconds = seconds
        self.rates: dict[tuple[str, str], list[float]] = {}
        self.micros: dict[tuple[str, str], list[float]] = {}
        self.failed = dict.fromkeys(brokers, 0)
        """Sends that were refused, as Java's broker does when its queue waits for 200 ms."""

    def load(self, name: str, connections: int, in_flight: int, seconds: float) -> None:
        """Send for a while, and keep the figures."""
        side = self.brokers[name].side
        templates = signed_templates(TOPIC, b"x" * 1024, in_flight, "" if name == OFF else USER)
        before = cpu_seconds(side.pid)
        found = run_shape(side.address, TOPIC, connections, in_flight, seconds, templates=templates)
        if found.failed > found.messages / 10:
            raise SystemExit(f"{name} refuses {found.failed} sends beside {found.messages}")
        self.failed[name] += found.failed
        key = name, f"{connections} × {in_flight}"
        self.rates.setdefault(key, []).append(found.rate)
        cpu = cpu_seconds(side.pid) - before
        self.micros.setdefault(key, []).append(cpu / found.messages * 1e6)

    def run(self, shapes: list[tuple[int, int]], rounds: int, warm_up: float) -> None:
        for name in self.brokers:
            if warm_up:
                self.load(name, 1, 64, warm_up if name == JAVA else warm_up / 10)
        self.rates.clear()
        self.micros.clear()
        for _ in range(rounds):
            for shape in shapes:
                for name in self.brokers:
                    self.load(name, *shape, self.seconds)

    def report(self) -> Report:
        report = Report("access")
        for title, peer, factor in (
            ("Sends with users and rules, beside ours without them", OFF, 0.85),
            ("Sends with users and rules, beside Java's broker with its ACL", JAVA, 1.5),
        ):
            if peer not in self.brokers:
                continue
            table = report.table(title, peer)
            for name, shape in [key for key in self.rates if key[0] == ON]:
                rates, micros = (
                    [statistics.median(found[side, shape]) for side in (name, peer)]
                    for found in (self.rates, self.micros)
                )
                table.rows += [
                    Row(f"sends, {shape}", "msgs/s", *rates, factor=factor),
                    Row(f"CPU of a send, {shape}", "µs", *micros, less_is_better=True),
                ]
        report.notes += [
            f"{name} refused {failed} sends" for name, failed in self.failed.items() if failed
        ]
        return report


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Sends with users and rules, and without.")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=float, default=40.0, help="seconds, of Java")
    parser.add_argument("--shapes", default="1x1,1x64,64x8", help="connections x in flight")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-java", action="store_true")
    options = parser.parse_args(argv)
    if not options.no_java and processes.java_home("5.5.0") is None:
        raise Missing("the Java broker is not installed: run `make peers`, or give --no-java")
    folder = Path(tempfile.mkdtemp(prefix="bench-access-"))
    try:
        with surely_ending(SECONDS_MAX), ExitStack() as stack:
            ours = stack.enter_context(processes.our_name_server(folder))
            brokers = {
                OFF: our_server(folder / "off", ours, "broker-off"),
                ON: our_server(folder / "on", ours, "broker-on", **ACCESS),
            }
            if not options.no_java:
                namesrv = processes.java_name_server("5.5.0", folder / "namesrv")
                java = stack.enter_context(namesrv), "broker-java"
                brokers[JAVA] = java_server(folder / "java", *java, **ACCESS, **JAVA_STORES)
            for name, broker in brokers.items():
                stack.callback(broker.stop)
                broker.start()
                create_topic(broker.address, TOPIC, sign="" if name == OFF else ROOT)
                if name != OFF:
                    add_user(broker)
                    require_refusals(broker)
            bench = AccessBench(brokers, options.seconds)
            with telling_of_the_dead(list(brokers.values())):
                bench.run(parse_shapes(options.shapes), options.rounds, options.warm_up)
            bench.report().finish(options.json)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
