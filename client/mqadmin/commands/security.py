"""Commands that make and check certificates and first users, without a cluster.

tlsInit, tlsCheck, securityInit.
"""

from __future__ import annotations

from triomq.client.admin.arguments import Option, Values, whole
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.result import Result


def read_hosts(text: str) -> list[str]:
    hosts = [host.strip().strip("[]") for host in text.replace(";", ",").split(",") if host.strip()]
    if not hosts:
        raise ValueError("name at least one host")
    return hosts


HOSTS = Option(
    "--hosts HOSTS",
    "names and addresses that clients connect to, comma-separated (default: those of this machine)",
    read_hosts,
)


async def tls_init(values: Values) -> Result:
    # Imports cryptography: start-up time of the help.
    from triomq.client.mqadmin.core.certificates import make_certificates

    return make_certificates(values)


async def tls_check(values: Values) -> Result:
    from triomq.client.mqadmin.core.certificates import check_certificates  # likewise

    return await check_certificates(values)


async def security_init(values: Values) -> Result:
    from triomq.client.mqadmin.core.security_files import make_security  # likewise

    return make_security(values)


COMMANDS = (
    AdminCommand("tlsInit", own_access=True, local=tls_init, effect=Effect.ACTS).with_options(
        Option("--dir FOLDER", "folder of the files", default="tls"),
        HOSTS,
        Option("--days DAYS", "validity of the certificates in days", whole(1, 36500), default=365),
        Option("--password VALUE", "encrypt the private keys (PKCS#8, AES-256)"),
        Option("--mutual", "servers demand a client certificate"),
    ),
    AdminCommand("tlsCheck", local=tls_check).with_options(
        Option(
            "--hosts HOSTS",
            "names that the server's certificate must have, comma-separated",
            read_hosts,
        ),
        Option(
            "--connect HOST:PORT", "server for a handshake, as a client with this file makes it"
        ),
    ),
    AdminCommand(
        "securityInit", own_access=True, local=security_init, effect=Effect.ACTS
    ).with_options(
        Option("--dir FOLDER", "folder of the files; it must not have them", default="security"),
        HOSTS,
    ),
)
