"""Commands about settings: getBrokerConfig, updateBrokerConfig, getNamesrvConfig, updateNamesrvConfig, updateKvConfig, deleteKvConfig, updateOrderConf."""

from __future__ import annotations

from collections.abc import Mapping

from triomq.client.admin.admin import ORDER_NAMESPACE, Admin
from triomq.client.admin.arguments import Option, UsageError, Values, filled, truth
from triomq.client.admin.calls import Answers, read_header
from triomq.client.admin.command import Command, Result
from triomq.client.admin.commands.topic import TOPIC
from triomq.client.errors import ProtocolBroken
from triomq.remoting.properties import PropertiesError, format_properties, parse_properties
from triomq.remoting.protocol import command as wire
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.route import GetKvConfigResponseHeader, KvConfigHeader, PutKvConfigHeader

KEY_WIDTH = 50
KEY = Option("k", "key", "the setting", filled, required=True, placeholder="KEY")
VALUE = Option("v", "value", "its new value", str, required=True, placeholder="TEXT")
FAILURES = '"failures": {address: reason}}'


async def read_settings(admin: Admin, addresses: list[str], code: RequestCode) -> Answers[Mapping[str, str]]:
    """The settings of each server."""

    async def one(address: str) -> Mapping[str, str]:
        body = bytes((await admin.ask(address, code)).body)
        try:
            return parse_properties(body.decode())
        except (UnicodeDecodeError, PropertiesError) as error:
            raise ProtocolBroken(f"{address} answered with settings that cannot be read ({error})") from None

    return await admin.for_each(addresses, one)


def settings_result(answers: Answers[Mapping[str, str]], heading: Mapping[str, str], part: str) -> Result:
    blocks = []
    for address, settings in answers.some().items():
        lines = [f"============{heading.get(address, '')}{address}============"]
        lines += [f"{key:<{KEY_WIDTH}}=  {settings[key]}" for key in sorted(settings)]
        blocks.append("\n".join(lines))
    document = {part: {address: dict(sorted(settings.items())) for address, settings in answers.values.items()}, "failures": answers.reasons()}
    return Result(document=document, blocks=blocks, failures=answers.reasons(), asked=answers.asked)


async def get_broker_config(admin: Admin, options: Values) -> Result:
    """Print the settings of brokers."""
    address = options.maybe_text("brokerAddr")
    brokers = [] if address is not None else await admin.brokers(options.text("clusterName"))
    heading = {broker.address: f"{'Master' if broker.id == 0 else 'Slave'}: " for broker in brokers}
    return settings_result(await read_settings(admin, [address] if address is not None else list(heading), RequestCode.GET_BROKER_CONFIG), heading, "brokers")


async def update_broker_config(admin: Admin, options: Values) -> Result:
    """Change a setting of brokers that run."""
    address, cluster = options.maybe_text("brokerAddr"), options.maybe_text("clusterName")
    if (address is None) == (cluster is None):
        raise UsageError("one of -b/--brokerAddr and -c/--clusterName is needed, and only one")
    masters_only = not options.maybe_flag("updateAllBroker")
    addresses = [address] if address is not None else [broker.address for broker in await admin.brokers(cluster, masters_only=masters_only)]
    body = format_properties({options.text("key"): options.text("value")}).encode()
    answers = await admin.for_each(addresses, lambda target: admin.ask(target, RequestCode.UPDATE_BROKER_CONFIG, body=body))
    return changed(options, answers, "brokers", "update broker config success, {}")


async def get_namesrv_config(admin: Admin, options: Values) -> Result:
    """Print the settings of all name servers."""
    return settings_result(await read_settings(admin, list(admin.namesrv_addresses), RequestCode.GET_NAMESRV_CONFIG), {}, "nameServers")


async def update_namesrv_config(admin: Admin, options: Values) -> Result:
    """Change a setting of all name servers."""
    body = format_properties({options.text("key"): options.text("value")}).encode()
    answers = await admin.for_each(admin.namesrv_addresses, lambda target: admin.ask(target, RequestCode.UPDATE_NAMESRV_CONFIG, body=body))
    return changed(options, answers, "nameServers", "update name server config success, {}")


def changed(options: Values, answers: Answers[wire.Command], part: str, line: str) -> Result:
    answers.some()
    document = {part: sorted(answers.values), "key": options.text("key"), "value": options.text("value"), "failures": answers.reasons()}
    return Result(document=document, blocks=[line.format(address) for address in answers.values], failures=answers.reasons(), asked=answers.asked)


async def tell_name_servers(admin: Admin, code: RequestCode, header: object, document: dict[str, object], line: str) -> Result:
    """The same request to all name servers: they do not talk to each other."""
    answers = await admin.for_each(admin.namesrv_addresses, lambda address: admin.ask(address, code, header))
    answers.some()
    return Result(document={**document, "nameServers": sorted(answers.values), "failures": answers.reasons()}, blocks=[line], failures=answers.reasons(), asked=answers.asked)


async def update_kv_config(admin: Admin, options: Values) -> Result:
    """Store a value at all name servers."""
    namespace, key, value = options.text("namespace"), options.text("key"), options.text("value")
    document: dict[str, object] = {"namespace": namespace, "key": key, "value": value}
    header = PutKvConfigHeader(namespace=namespace, key=key, value=value)
    return await tell_name_servers(admin, RequestCode.PUT_KV_CONFIG, header, document, "create or update kv config to namespace success.")


async def delete_kv_config(admin: Admin, options: Values) -> Result:
    """Remove a value from all name servers."""
    namespace, key = options.text("namespace"), options.text("key")
    header = KvConfigHeader(namespace=namespace, key=key)
    return await tell_name_servers(admin, RequestCode.DELETE_KV_CONFIG, header, {"namespace": namespace, "key": key}, "delete kv config from namespace success.")


async def update_order_conf(admin: Admin, options: Values) -> Result:
    """Store, print or remove the fixed queues of an ordered topic."""
    topic, method, conf = options.text("topic"), options.text("method"), options.maybe_text("orderConf")
    header = KvConfigHeader(namespace=ORDER_NAMESPACE, key=topic)
    if method == "get":
        found = await admin.for_each(admin.namesrv_addresses, lambda address: admin.ask(address, RequestCode.GET_KV_CONFIG, header))
        value = read_header(GetKvConfigResponseHeader, next(iter(found.some().values()))).value
        return Result(
            document={"topic": topic, "orderConf": value, "failures": found.reasons()},
            blocks=[f"get orderConf success. topic=[{topic}], orderConf=[{value}]"],
            failures=found.reasons(),
            asked=found.asked,
        )
    if method == "delete":
        return await tell_name_servers(admin, RequestCode.DELETE_KV_CONFIG, header, {"topic": topic}, f"delete orderConf success. topic=[{topic}]")
    if conf is None:
        raise UsageError("-m put needs -v/--orderConf: brokerName:queues;brokerName:queues")
    put = PutKvConfigHeader(namespace=ORDER_NAMESPACE, key=topic, value=conf)
    line = f"update orderConf success. topic=[{topic}], orderConf=[{conf}]"
    return await tell_name_servers(admin, RequestCode.PUT_KV_CONFIG, put, {"topic": topic, "orderConf": conf}, line)


def method(text: str) -> str:
    """Read put, get or delete."""
    if text.strip() not in ("put", "get", "delete"):
        raise ValueError("use put, get or delete")
    return text.strip()


def order_conf(text: str) -> str:
    """Read `broker-a:4;broker-b:4`."""
    for part in filled(text).split(";"):
        broker, _, count = part.partition(":")
        if not broker or not count.isdigit():
            raise ValueError(f"{part!r} is not brokerName:queues")
    return filled(text)


NAMESPACE = Option("s", "namespace", "the namespace", filled, required=True, placeholder="NAME")
KV_KEY = Option("k", "key", "the key", filled, required=True, placeholder="KEY")

COMMANDS = (
    Command(
        name="getBrokerConfig",
        group="cluster",
        summary="print the settings of brokers as they are in effect",
        run=get_broker_config,
        options=(
            Option("b", "brokerAddr", "one broker, host:port", filled, placeholder="ADDRESS"),
            Option("c", "clusterName", "all brokers of a cluster", filled, placeholder="NAME"),
        ),
        one_of=(("brokerAddr", "clusterName"),),
        examples=("getBrokerConfig -b 127.0.0.1:10911",),
        document='{"brokers": {address: {key: value}}, ' + FAILURES,
    ),
    Command(
        name="updateBrokerConfig",
        group="cluster",
        summary="change a setting of brokers that run",
        run=update_broker_config,
        options=(
            Option("b", "brokerAddr", "one broker, host:port", filled, placeholder="ADDRESS"),
            Option("c", "clusterName", "all masters of a cluster", filled, placeholder="NAME"),
            Option("a", "updateAllBroker", "true: with -c its slaves too", truth, placeholder="BOOL"),
            KEY,
            VALUE,
        ),
        examples=("updateBrokerConfig -b 127.0.0.1:10911 -k brokerPermission -v 4",),
        document='{"brokers": [address], "key", "value", ' + FAILURES,
        remarks=("Our brokers refuse unknown keys, values that cannot be used and settings that need a restart; Java's take anything in silence.",),
    ),
    Command(
        name="getNamesrvConfig",
        group="cluster",
        summary="print the settings of all name servers",
        run=get_namesrv_config,
        examples=("getNamesrvConfig -n 127.0.0.1:9876",),
        document='{"nameServers": {address: {key: value}}, ' + FAILURES,
    ),
    Command(
        name="updateNamesrvConfig",
        group="cluster",
        summary="change a setting of all name servers while they run",
        run=update_namesrv_config,
        options=(KEY, VALUE),
        examples=("updateNamesrvConfig -k orderMessageEnable -v true",),
        document='{"nameServers": [address], "key", "value", ' + FAILURES,
    ),
    Command(
        name="updateKvConfig",
        group="cluster",
        summary="store a value in the name servers' key-value table",
        run=update_kv_config,
        options=(NAMESPACE, KV_KEY, VALUE),
        examples=("updateKvConfig -s ORDER_TOPIC_CONFIG -k orders -v broker-a:4",),
        document='{"namespace", "key", "value", "nameServers": [address], ' + FAILURES,
    ),
    Command(
        name="deleteKvConfig",
        group="cluster",
        summary="remove a value from the name servers' key-value table",
        run=delete_kv_config,
        options=(NAMESPACE, KV_KEY),
        examples=("deleteKvConfig -s ORDER_TOPIC_CONFIG -k orders",),
        document='{"namespace", "key", "nameServers": [address], ' + FAILURES,
    ),
    Command(
        name="updateOrderConf",
        group="topic",
        summary="store, print or remove how many queues each broker of an ordered topic has",
        run=update_order_conf,
        options=(
            TOPIC,
            Option("m", "method", "put, get or delete", method, required=True, placeholder="METHOD"),
            Option("v", "orderConf", "for put: brokerName:queues;brokerName:queues", order_conf, placeholder="CONF"),
        ),
        examples=("updateOrderConf -t orders -m put -v 'broker-a:4;broker-b:4'",),
        document='{"topic", "orderConf", "nameServers": [address], ' + FAILURES,
    ),
)
