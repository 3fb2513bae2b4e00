"""Build and run a console; its tasks stop in the reverse order of their start.

::

    run_console ─┬ Admin (polling), Admin (reading)   connections
                 ├ poller                             owns what pages show
                 ├ doctor                             what mqadmin doctor finds, once a minute
                 ├ sessions                           ends those of removed users
                 └ hypercorn                          stops first; answers in progress may end
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar, cast

import attrs
import hypercorn.trio
import trio
from hypercorn.config import Config
from hypercorn.typing import Framework

from triomq.client.admin.admin import Admin
from triomq.client.admin.cluster_poller import ClusterPoller
from triomq.client.admin.holding_admin import HoldingAdmin
from triomq.client.console.app import make_app
from triomq.client.console.core.audit import AuditLog
from triomq.client.console.core.cluster_doctor import ClusterDoctor
from triomq.client.console.core.console_settings import ConsoleSettings
from triomq.client.console.core.logins import ClusterLogin, FileLogin, PasswordCheck
from triomq.client.console.core.page_visit import Console
from triomq.client.console.core.rendering import make_templates
from triomq.client.core.servers import namesrv_addresses
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.server.listen import open_listener

logger = logging.getLogger(__name__)

A = TypeVar("A", bound=Admin)
REQUEST_SECONDS = 2.0
"""of a request for a page, or of a poll"""
SESSION_CHECK_SECONDS = 30.0
STOP_SECONDS = 3.0
BACKLOG = 100


@attrs.frozen
class ConsoleReady:
    """A console that answers at this address."""

    url: str
    stop: Callable[[], None] = attrs.field(eq=False, repr=False)

    def banner(self) -> str:
        """Return the line that a process prints when it is ready."""
        return f"console ready on {self.url}"


def open_admin(
    settings: ConsoleSettings,
    credentials: Credentials | None,
    namesrvs: Sequence[str] | None = None,
    kind: type[A] = Admin,  # type: ignore[assignment]  # the default of a type variable
) -> A:
    """Return an ``Admin`` of the console's cluster, at some of its name servers only."""
    return kind(
        namesrvs or settings.namesrv,
        timeout_seconds=REQUEST_SECONDS,
        tls=settings.tls,
        credentials=credentials,
    )


@asynccontextmanager
async def open_console(settings: ConsoleSettings) -> AsyncIterator[Console]:
    """Connect, poll once, and keep polling for the length of the block."""
    passwords: PasswordCheck = (
        FileLogin(settings.users_file)
        if settings.users_file is not None
        else ClusterLogin(partial(open_admin, settings))
    )
    async with (
        open_admin(settings, settings.credentials) as polling,
        open_admin(settings, settings.credentials) as reading,
        trio.open_nursery() as nursery,
    ):
        poller = ClusterPoller(polling, reading, settings.poll_seconds)
        console = Console(
            settings=settings,
            admin=reading,
            poller=poller,
            doctor=ClusterDoctor(
                namesrv_addresses(settings.namesrv),
                partial(open_admin, settings, settings.credentials),
            ),
            trial=partial(open_admin, settings, settings.credentials, kind=HoldingAdmin),
            passwords=passwords,
            audit=AuditLog(settings.audit_file),
            templates=make_templates(),
        )
        await nursery.start(poller.poll_forever)
        nursery.start_soon(console.doctor.examine_forever, name="console-doctor")
        nursery.start_soon(_end_sessions, console)
        yield console
        nursery.cancel_scope.cancel()


async def run_console(
    settings: ConsoleSettings,
    *,
    task_status: trio.TaskStatus[ConsoleReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until stopped; ``started(ConsoleReady(...))`` when pages are answered.

    It starts without a cluster too, and its pages say what does not answer.

    Raises: SettingsError, ConfigError, AddressInUse, ListenFailed. Checkpoint: always.
    """
    stopping = trio.Event()
    with open_listener(settings.host, settings.port, BACKLOG, "--port") as listener:
        async with open_console(settings) as console, trio.open_nursery() as nursery:
            app = cast("Framework", make_app(console))
            config = _server_config(settings, listener)
            urls: list[str] = await nursery.start(
                partial(hypercorn.trio.serve, app, config, shutdown_trigger=stopping.wait)
            )
            task_status.started(ConsoleReady(urls[0], stopping.set))


def _server_config(settings: ConsoleSettings, listener: socket.socket) -> Config:
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]  # hypercorn's own error names no fix
    if settings.certificate is not None and settings.key is not None:
        config.certfile, config.keyfile = str(settings.certificate), str(settings.key)
    config.graceful_timeout = config.shutdown_timeout = STOP_SECONDS
    config.errorlog = logging.getLogger("triomq.console.http")
    config.errorlog.setLevel(logging.WARNING)  # it also says that it listens, as we do
    config.include_server_header = False
    config.h11_max_incomplete_size = 64 * 1024
    return config


async def _end_sessions(console: Console) -> None:
    """End the sessions of users who were removed from the users file."""
    while True:
        await trio.sleep(SESSION_CHECK_SECONDS)
        try:
            roles = await console.passwords.present_roles()
        except ConfigError as error:
            logger.warning("sessions go on as they are: %s", error)
            continue
        if roles is not None:
            console.sessions.keep(roles)
