"""What a broker says of controllers that do not answer."""

from __future__ import annotations

from typing import Any

import pytest

from triomq.broker.roles.controllers import Controllers, ControllersSilent
from triomq.remoting.core.errors import RemotingError


class Silent:
    async def invoke(self, address: str, command: object, *, timeout: float) -> Any:
        raise RemotingError(f"{address} is away")


async def test_silent_controllers_are_named_in_one_sentence() -> None:
    with pytest.raises(ControllersSilent) as raised:
        await Controllers(["a:1", "b:2"], Silent()).find_leader()  # type: ignore[arg-type]
    assert str(raised.value) == "no controller of a:1, b:2 leads now: see the controllers' logs"
