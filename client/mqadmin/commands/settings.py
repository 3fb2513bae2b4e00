"""Commands about settings of servers, and values that name servers store.

getBrokerConfig, updateBrokerConfig, getNamesrvConfig, updateNamesrvConfig, getControllerConfig,
updateControllerConfig, updateKvConfig, deleteKvConfig, updateOrderConf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from triomq.client.admin.answers import Answers, read_header
from triomq.client.admin.arguments import Option, UsageError, Values, filled, truth
from triomq.client.admin.server_settings import read_settings
from triomq.client.mqadmin.core.command import TOPIC, AdminCommand, Effect
from triomq.client.mqadmin.core.places import (
    BROKERS,
    CONTROLLERS,
    ask_each,
    beside_missing,
    chosen_brokers,
    chosen_controllers,
)
from triomq.client.mqadmin.core.result import Result, answered
from triomq.remoting.core.properties_file import format_properties
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.registration import (
    GetKvConfigResponseHeader,
    KvConfigHeader,
    PutKvConfigHeader,
)
from triomq.remoting.protocol.names import ORDER_TOPIC_CONFIG

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

KEY_WIDTH = 50
KEY = Option("-k, --key KEY", "the setting", required=True)
VALUE = Option("-v, --value TEXT", "its new value", str, required=True)


def settings_result(
    answers: Answers[Mapping[str, str]], heading: Mapping[str, str], part: str
) -> Result:
    blocks = []
    for address, settings in answers.some().items():
        lines = [f"============{heading.get(address, '')}{address}============"]
        lines += [f"{key:<{KEY_WIDTH}}=  {settings[key]}" for key in sorted(settings)]
        blocks.append("\n".join(lines))
    values = {
        address: dict(sorted(settings.items())) for address, settings in answers.values.items()
    }
    return answered(answers, {part: values}, blocks)


async def get_broker_config(admin: Admin, options: Values) -> Result:
    address = options.maybe_text("brokerAddr")
    brokers = [] if address is not None else await admin.brokers(options.text("clusterName"))
    heading = {broker.address: f"{'Master' if broker.id == 0 else 'Slave'}: " for broker in brokers}
    addresses = [address] if address is not None else list(heading)
    answers = await read_settings(admin, addresses, RequestCode.GET_BROKER_CONFIG)
    return settings_result(await beside_missing(admin, options, answers), heading, "brokers")


async def update_broker_config(admin: Admin, options: Values) -> Result:
    masters_only = not options.maybe_flag("updateAllBroker")
    addresses = await chosen_brokers(admin, options, masters_only=masters_only)
    code, line = RequestCode.UPDATE_BROKER_CONFIG, "update broker config success"
    return await change_setting(admin, options, addresses, code, "brokers", line)


async def get_namesrv_config(admin: Admin, options: Values) -> Result:
    addresses, code = admin.namesrv_addresses, RequestCode.GET_NAMESRV_CONFIG
    return settings_result(await read_settings(admin, addresses, code), {}, "nameServers")


async def update_namesrv_config(admin: Admin, options: Values) -> Result:
    code, line = RequestCode.UPDATE_NAMESRV_CONFIG, "update name server config success"
    return await change_setting(admin, options, admin.namesrv_addresses, code, "nameServers", line)


async def controller_config(admin: Admin, options: Values) -> Result:
    code = RequestCode.GET_CONTROLLER_CONFIG
    return settings_result(
        await read_settings(admin, chosen_controllers(options), code), {}, "controllers"
    )


async def update_controller_config(admin: Admin, options: Values) -> Result:
    code, line = RequestCode.UPDATE_CONTROLLER_CONFIG, "update controller config success"
    return await change_setting(
        admin, options, chosen_controllers(options), code, "controllers", line
    )


async def change_setting(
    admin: Admin, options: Values, addresses: Sequence[str], code: RequestCode, part: str, line: str
) -> Result:
    """Change a setting of servers; ``part`` is their key in the document."""
    key, value = options.text("key"), options.text("value")
    body = format_properties({key: value}).encode()
    answers = await ask_each(admin, addresses, code, body=body)
    return answered(
        answers,
        {part: sorted(answers.values), "key": key, "value": value},
        [f"{line}, {address}" for address in answers.values],
    )


async def ask_name_servers(
    admin: Admin, code: RequestCode, header: object, document: dict[str, object], line: str
) -> Result:
    """Send the same request to all name servers: they do not talk to each other."""
    answers = await ask_each(admin, admin.namesrv_addresses, code, header)
    return answered(answers, {**document, "nameServers": sorted(answers.values)}, [line])


async def update_kv_config(admin: Admin, options: Values) -> Result:
    namespace, key, value = options.text("namespace"), options.text("key"), options.text("value")
    return await ask_name_servers(
        admin,
        RequestCode.PUT_KV_CONFIG,
        PutKvConfigHeader(namespace, key, value),
        {"namespace": namespace, "key": key, "value": value},
        "create or update kv config to namespace success.",
    )


async def delete_kv_config(admin: Admin, options: Values) -> Result:
    namespace, key = options.text("namespace"), options.text("key")
    return await ask_name_servers(
        admin,
        RequestCode.DELETE_KV_CONFIG,
        KvConfigHeader(namespace, key),
        {"namespace": namespace, "key": key},
        "delete kv config from namespace success.",
    )


async def update_order_conf(admin: Admin, options: Values) -> Result:
    topic, method = options.text("topic"), options.text("method")
    header = KvConfigHeader(ORDER_TOPIC_CONFIG, topic)
    if method == "get":
        found = await ask_each(admin, admin.namesrv_addresses, RequestCode.GET_KV_CONFIG, header)
        value = read_header(GetKvConfigResponseHeader, next(iter(found.values.values()))).value
        return answered(
            found,
            {"topic": topic, "orderConf": value, "nameServers": sorted(found.values)},
            [f"get orderConf success. topic=[{topic}], orderConf=[{value}]"],
        )
    if method == "delete":
        return await ask_name_servers(
            admin,
            RequestCode.DELETE_KV_CONFIG,
            header,
            {"topic": topic},
            f"delete orderConf success. topic=[{topic}]",
        )
    conf = options.maybe_text("orderConf")
    if conf is None:
        raise UsageError("-m put needs -v/--orderConf: brokerName:queues;brokerName:queues")
    put = PutKvConfigHeader(ORDER_TOPIC_CONFIG, topic, conf)
    line = f"update orderConf success. topic=[{topic}], orderConf=[{conf}]"
    return await ask_name_servers(
        admin, RequestCode.PUT_KV_CONFIG, put, {"topic": topic, "orderConf": conf}, line
    )


def method(text: str) -> str:
    """Read put, get or delete."""
    if text.strip() not in ("put", "get", "delete"):
        raise ValueError("use put, get or delete")
    return text.strip()


def order_conf(text: str) -> str:
    """Read ``broker-a:4;broker-b:4``."""
    for part in filled(text).split(";"):
        broker, _, count = part.partition(":")
        if not broker or not count.isdigit():
            raise ValueError(f"{part!r} is not brokerName:queues")
    return filled(text)


NAMESPACE = Option("-s, --namespace NAME", "the namespace", required=True)
KV_KEY = Option("-k, --key KEY", "the key", required=True)

COMMANDS = (
    AdminCommand("getBrokerConfig", get_broker_config).with_options(*BROKERS),
    AdminCommand("updateBrokerConfig", update_broker_config, effect=Effect.CHANGES).with_options(
        Option("-b, --brokerAddr ADDRESS", "one broker, host:port"),
        Option("-c, --clusterName NAME", "all masters of a cluster"),
        Option("-a, --updateAllBroker BOOL", "true: with -c also its slaves", truth),
        KEY,
        VALUE,
    ),
    AdminCommand("getNamesrvConfig", get_namesrv_config),
    AdminCommand("updateNamesrvConfig", update_namesrv_config, effect=Effect.CHANGES).with_options(
        KEY, VALUE
    ),
    AdminCommand("getControllerConfig", controller_config).with_options(CONTROLLERS),
    AdminCommand(
        "updateControllerConfig", update_controller_config, effect=Effect.CHANGES
    ).with_options(CONTROLLERS, KEY, VALUE),
    AdminCommand("updateKvConfig", update_kv_config, effect=Effect.CHANGES).with_options(
        NAMESPACE, KV_KEY, VALUE
    ),
    AdminCommand(
        "deleteKvConfig", delete_kv_config, effect=Effect.DESTROYS, loss="the value"
    ).with_options(NAMESPACE, KV_KEY),
    AdminCommand("updateOrderConf", update_order_conf, effect=Effect.CHANGES).with_options(
        TOPIC,
        Option("-m, --method METHOD", "put, get or delete", method, required=True),
        Option("-v, --orderConf CONF", "for put: brokerName:queues;brokerName:queues", order_conf),
    ),
)
