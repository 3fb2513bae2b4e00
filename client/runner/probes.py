"""``Probes``: a port with /live, /ready, /status and /metrics for producers and consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import SupportsIndex

from triomq.client.core.arguments import check_count, shown
from triomq.client.core.errors import SettingsError
from triomq.client.core.lifetime import Lifetime
from triomq.client.runner.figures import AnyClient, ClientFigures
from triomq.client.sdk.group_consumer import Consumer
from triomq.client.sdk.producer import Producer
from triomq.remoting.monitor.http_server import monitoring
from triomq.remoting.monitor.monitor_settings import MonitorSettings

PORT_MAX = 65_535


class Probes(Lifetime):
    """Answers the probes of Kubernetes and the scrapes of Prometheus; used with ``async with``.

        async with PushConsumer(...) as consumer, Probes(consumer, port=8081):
            await trio.sleep_forever()

    ``/live`` answers while the loop runs. ``/ready`` answers 200 while every object runs, a broker
    has answered each consumer, and those that own queues have had a share; otherwise 503 and the
    reason. ``/metrics`` has rates, latencies, messages in flight, lag and retries.
    """

    def __init__(self, *clients: AnyClient, port: SupportsIndex, host: str = "127.0.0.1") -> None:
        """Describe the port; nothing is opened.

        ``clients``: producers and consumers, started or not. ``host``: the address to listen on;
        ``"0.0.0.0"`` or ``"::"`` if probes come from other machines: there is no TLS and no login.

        Raises: ``SettingsError``; the block raises ``OSError`` if the port is in use.
        """
        for client in clients:
            if not isinstance(client, Producer | Consumer):
                raise SettingsError(
                    f"probes are for producers and consumers of triomq, not {shown(client)}"
                )
        number = check_count("port", port)
        if number > PORT_MAX:
            raise SettingsError(f"port must be 1 to {PORT_MAX}, not {number}")
        self._settings = MonitorSettings(port=number, host=host)
        self._figures = ClientFigures(clients)

    def __repr__(self) -> str:
        clients = len(self._figures.clients)
        return f"<Probes of {clients} clients on {self._settings.host}:{self._settings.port}>"

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        async with monitoring(self._settings, "triomq", warns=False) as monitor:
            await self._figures.refresh(0)
            monitor.serve(self._figures)
            yield
