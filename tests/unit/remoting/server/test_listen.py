"""What a server says of a port at its start."""

from __future__ import annotations

import pytest

from triomq.remoting.server.listen import open_listener, warn_if_open


@pytest.mark.parametrize(("host", "is_open"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_an_open_port_without_login_is_said(
    host: str, is_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with open_listener(host, 0, 1) as listener:
        warn_if_open(listener, "read", "set bindAddress")
        port = listener.getsockname()[1]
    said = f"everybody who reaches {host}:{port} may read: the port has no login; set bindAddress"
    assert caplog.messages == ([said] if is_open else [])
