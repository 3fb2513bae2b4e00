"""Commands about messages that left the page cache, for brokers of RocketMQ.

getColdDataFlowCtrInfo, updateColdDataFlowCtrGroupConfig, removeColdDataFlowCtrGroupConfig,
setCommitLogReadAheadMode.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from triomq.client.admin.answers import read_body
from triomq.client.admin.arguments import Option, Values, whole
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.places import MASTERS, ask_each, chosen_brokers
from triomq.client.mqadmin.core.result import Result, answered
from triomq.remoting.core.properties_file import format_properties
from triomq.remoting.protocol.bodies.cluster import ColdReads
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.admin import ReadModeHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


async def cold_reads(admin: Admin, options: Values) -> Result:
    addresses = await chosen_brokers(admin, options)
    answers = await ask_each(admin, addresses, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    known = {
        address: json.loads(read_body(ColdReads, answer).encode())
        for address, answer in answers.values.items()
    }
    blocks = [
        f"============{address}============\n{json.dumps(table, indent=4, ensure_ascii=False)}"
        for address, table in known.items()
    ]
    return answered(answers, {"brokers": known}, blocks)


async def change_threshold(
    admin: Admin, options: Values, code: RequestCode, body: bytes, line: str
) -> Result:
    addresses = await chosen_brokers(admin, options)
    answers = await ask_each(admin, addresses, code, body=body)
    document = {"group": options.text("consumerGroup"), "brokers": sorted(answers.values)}
    return answered(answers, document, [f"{line}, {address}" for address in answers.values])


async def update_threshold(admin: Admin, options: Values) -> Result:
    group, threshold = options.text("consumerGroup"), options.number("threshold")
    body = format_properties({group: str(threshold)}).encode()
    code = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG
    line = "updateColdDataFlowCtrGroupConfig success"
    return await change_threshold(admin, options, code, body, line)


async def remove_threshold(admin: Admin, options: Values) -> Result:
    code, body = (
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        options.text("consumerGroup").encode(),
    )
    return await change_threshold(
        admin, options, code, body, "remove broker cold read threshold success"
    )


async def set_read_ahead(admin: Admin, options: Values) -> Result:
    mode = options.number("commitLogReadAheadMode")
    header = ReadModeHeader(read_ahead_mode=str(mode))
    addresses = await chosen_brokers(admin, options)
    answers = await ask_each(admin, addresses, RequestCode.SET_COMMITLOG_READ_MODE, header)
    return answered(
        answers,
        {"mode": mode, "brokers": sorted(answers.values)},
        [f"set commitlog read ahead mode {mode} success, {address}" for address in answers.values],
    )


GROUP = Option("-g, --consumerGroup GROUP", "the group", required=True)

COMMANDS = (
    AdminCommand("getColdDataFlowCtrInfo", cold_reads).with_options(*MASTERS),
    AdminCommand(
        "updateColdDataFlowCtrGroupConfig", update_threshold, effect=Effect.CHANGES
    ).with_options(
        *MASTERS,
        GROUP,
        Option(
            "-v, --threshold BYTES", "bytes from disk that it may read", whole(0), required=True
        ),
    ),
    AdminCommand(
        "removeColdDataFlowCtrGroupConfig", remove_threshold, effect=Effect.CHANGES
    ).with_options(*MASTERS, GROUP),
    AdminCommand("setCommitLogReadAheadMode", set_read_ahead, effect=Effect.CHANGES).with_options(
        *MASTERS,
        Option(
            "-m, --commitLogReadAheadMode MODE",
            "0: as usual, 1: for random reads",
            whole(0, 1),
            required=True,
        ),
    ),
)
