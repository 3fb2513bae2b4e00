"""Settings, as servers print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from triomq.client.admin.answers import Answers
from triomq.client.core.errors import ProtocolBroken
from triomq.remoting.core.properties_file import PropertiesError, parse_properties
from triomq.remoting.protocol.codes import RequestCode

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


async def read_settings(
    admin: Admin, addresses: Sequence[str], code: RequestCode
) -> Answers[Mapping[str, str]]:
    """Return the settings of each server."""

    async def settings_of(address: str) -> Mapping[str, str]:
        body = bytes((await admin.ask(address, code)).body)
        try:
            return parse_properties(body.decode())
        except (UnicodeDecodeError, PropertiesError) as error:
            raise ProtocolBroken(f"{address} sent settings that cannot be read ({error})") from None

    return await admin.for_each(addresses, settings_of)
