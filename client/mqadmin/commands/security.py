"""Commands that make and check certificates and first users, without a cluster.

tlsInit, tlsCheck, securityInit.
"""

from __future__ import annotations

from triomq.client.admin.arguments import Option, Values, whole
from triomq.client.mqadmin.core.command import AdminCommand, Effect, Result


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
    AdminCommand(
        name="tlsInit",
        own_access=True,
        local=tls_init,
        effect=Effect.ACTS,
        options=(
            Option("--dir FOLDER", "folder of the files", default="tls"),
            HOSTS,
            Option(
                "--days DAYS", "validity of the certificates in days", whole(1, 36500), default=365
            ),
            Option("--password VALUE", "encrypt the private keys (PKCS#8, AES-256)"),
            Option("--mutual", "servers demand a client certificate"),
        ),
        examples=(
            "tlsInit --dir ~/tls --hosts broker.example.com,10.0.0.7",
            "tls init --dir ~/tls --mutual",
        ),
        document='{"dir", "config", "hosts": [host], "validUntil", "newAuthority"}',
        remarks=(
            "An authority in the folder is used again, so clients still trust the new"
            " certificates; running servers load the new files by themselves.\n"
            "The certificates are for development and tests: in production the keys belong to"
            " your own authority."
        ),
    ),
    AdminCommand(
        name="tlsCheck",
        local=tls_check,
        options=(
            Option(
                "--hosts HOSTS",
                "names that the server's certificate must have, comma-separated",
                read_hosts,
            ),
            Option(
                "--connect HOST:PORT", "server for a handshake, as a client with this file makes it"
            ),
        ),
        examples=(
            "tlsCheck --tls ~/tls/tls.properties --hosts broker.example.com",
            "tls check --tls ~/tls/tls.properties --connect broker.example.com:10911",
        ),
        document=(
            '{"config", "ok", "findings": [{"subject", "check", "level": "ok"|"warning"|"error",'
            ' "text", "fix"}]}'
        ),
        remarks="The exit code is 1 if a finding is an error.",
    ),
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
