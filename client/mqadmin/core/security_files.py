"""Make certificates, the first users, and settings that use them for every kind of server."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from triomq.client.admin.arguments import Values
from triomq.client.core.errors import SettingsError
from triomq.client.mqadmin.core.certificates import own_hosts
from triomq.client.mqadmin.core.result import Result
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.tls.development import initialise

ADMINISTRATOR, BROKERS = "administrator", "brokers"
_BYTES = 24
"""Of a password, in 32 characters."""


def make_security(values: Values) -> Result:
    """Write all files; the folder must not have them yet."""
    folder = Path(values.text("dir")).expanduser().resolve()
    hosts: Sequence[str] = values.value("hosts") or own_hosts()
    tls = folder / "tls" / "tls.properties"
    texts = _texts(tls)
    paths = {what: folder / name for what, (name, _) in texts.items()}
    if present := [str(path) for path in paths.values() if path.exists()]:
        raise SettingsError(
            f"{present[0]} is there already, and its passwords may be in use: name another folder"
            " with --dir, or move it away"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        initialise(tls.parent, hosts)
        for what, (_, text) in texts.items():
            _write_file(paths[what], text)
    except ConfigError as error:
        raise SettingsError(str(error)) from None
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"the files cannot be written to {folder}: {error}; name another folder with --dir"
        ) from None
    lines = [
        f"Name server: mqnamesrv -c {paths['name server']}",
        f"Broker:      mqbroker -c {paths['broker']} -n HOST:9876",
        "             (or put its lines into the file of each broker of the cluster)",
        f"Proxy:       mqproxy -c {paths['proxy']} -n HOST:9876",
        f"You:         mqadmin COMMAND --tls {tls} --credentials {paths['administrator']}",
        "Programs:    mqadmin user create and mqadmin acl create make users and their rights;",
        f"             Tls.from_file('{tls}'), Credentials(access_key=..., secret_key=...)",
    ]
    return Result(
        document={
            "dir": str(folder),
            "hosts": list(hosts),
            "files": {"tls": str(tls), **{what: str(path) for what, path in paths.items()}},
            "administrator": ADMINISTRATOR,
        },
        blocks=["\n".join(lines)],
    )


def _texts(tls: Path) -> dict[str, tuple[str, str]]:
    """Return what is written: what for -> (file name, content)."""
    password, inner_password = secrets.token_urlsafe(_BYTES), secrets.token_urlsafe(_BYTES)
    first = json.dumps({"username": ADMINISTRATOR, "password": password})
    inner = json.dumps({"accessKey": BROKERS, "secretKey": inner_password})
    encrypted = f"tls.config.file={tls}\ntls.server.mode=enforcing\n"
    checked = f"authenticationEnabled=true\ninnerClientAuthenticationCredentials={inner}\n"
    rules = "authorizationEnabled=true\n"
    slaves = "haAuthentication=true\nhaTls=true\n"
    asking = "tls.enable=true\n"
    user = f"initAuthenticationUser={first}\n"
    return {
        "name server": ("namesrv.properties", checked + user + encrypted),
        "broker": ("broker.properties", checked + rules + user + slaves + encrypted + asking),
        "proxy": ("mqproxy.properties", checked + rules + encrypted + asking),
        "administrator": (
            "administrator.yml",
            f"accessKey: {ADMINISTRATOR}\nsecretKey: {password}\n",
        ),
    }


def _write_file(path: Path, text: str) -> None:
    """Write a new file that only its owner may read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
