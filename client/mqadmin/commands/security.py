"""``mqadmin security init``: all that a cluster needs to know its users and to speak TLS."""

from __future__ import annotations

from triomq.client.admin.arguments import Option, Values
from triomq.client.admin.hosts import HOSTS
from triomq.client.mqadmin.core.command import AdminCommand, Effect, Result


async def security_init(values: Values) -> Result:
    # Imports cryptography: start-up time of the help.
    from triomq.client.mqadmin.core.security_files import make_security

    return make_security(values)


COMMANDS = (
    AdminCommand(
        name="securityInit",
        own_access=True,
        local=security_init,
        effect=Effect.ACTS,
        options=(
            Option(
                "--dir FOLDER", "folder of the files; it must not have them", default="security"
            ),
            HOSTS,
        ),
        examples=("securityInit --dir ~/security --hosts broker.example.com,10.0.0.7",),
        document='{"dir", "hosts": [host], "files": {what: path}, "administrator"}',
        remarks=(
            "Makes a development authority with certificates (see `tls init`), an administrator, a"
            " user of the brokers, and a file of settings for each kind of server. The passwords"
            " are random, and only the owner may read the files."
        ),
    ),
)
