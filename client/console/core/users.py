"""The users file: a line ``name:role:hash`` for each user, with scrypt hashes of the passwords."""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

import attrs

from triomq.remoting.core.atomic_file import swap_file
from triomq.remoting.core.settings import ConfigError

SCRYPT_N, SCRYPT_R, SCRYPT_P = 1 << 15, 8, 1
"""32 MiB and about 0.1 s for each try"""
SCRYPT_N_MAX = 1 << 20
SCRYPT_MEMORY_FACTOR = 256  # 128 * r * N bytes are used; the limit must be above
PASSWORD_CHARACTERS_MIN, PASSWORD_CHARACTERS_MAX = 8, 1024
NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
USERS_MAX = 10_000


class UserRole(enum.IntEnum):
    """What a user may do; each role may do what those before it may."""

    VIEWER = 1
    """see every page"""
    OPERATOR = 2
    """create and change topics and groups, send and resend messages, move groups"""
    ADMIN = 3
    """delete, change configuration, users and policies"""

    @property
    def word(self) -> str:
        """Return the role as the users file and the options spell it."""
        return self.name.lower()


@attrs.frozen
class ConsoleUser:
    """A person who may log in."""

    name: str
    role: UserRole
    password_hash: str = attrs.field(repr=False)


def hash_password(password: str) -> str:
    """Return the line's hash of a new password. Raises: ValueError if it is too short or long."""
    if not PASSWORD_CHARACTERS_MIN <= len(password) <= PASSWORD_CHARACTERS_MAX:
        raise ValueError(
            f"the password has {len(password)} characters: use {PASSWORD_CHARACTERS_MIN} to"
            f" {PASSWORD_CHARACTERS_MAX}"
        )
    salt = secrets.token_bytes(16)
    digest = _scrypt(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    parts = (str(SCRYPT_N), str(SCRYPT_R), str(SCRYPT_P), _text(salt), _text(digest))
    return "$".join(("scrypt", *parts))


def password_matches(password: str, password_hash: str) -> bool:
    """Compare a password with a hash, in the same time for right and wrong ones."""
    if len(password) > PASSWORD_CHARACTERS_MAX:
        return False
    _, n, r, p, salt, digest = password_hash.split("$")
    found = _scrypt(password, base64.b64decode(salt), int(n), int(r), int(p))
    return hmac.compare_digest(found, base64.b64decode(digest))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    memory = SCRYPT_MEMORY_FACTOR * r * n
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=memory, dklen=32)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def read_users(path: Path) -> dict[str, ConsoleUser]:
    """Read a users file. Raises: ConfigError with the line that cannot be used."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "users file", f"cannot read {path}: {error}", "make it with `mqconsole user add`"
        ) from None
    if len(lines) > USERS_MAX:
        raise ConfigError(
            path.name, f"has more than {USERS_MAX} lines", "remove users who do not log in"
        )
    users: dict[str, ConsoleUser] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            user = _user(line)
        except ValueError as error:
            raise ConfigError(
                f"{path.name}:{number}", str(error), "write it with `mqconsole user add`"
            ) from None
        users[user.name] = user
    return users


def _user(line: str) -> ConsoleUser:
    name, first, rest = line.strip().partition(":")
    role, second, password_hash = rest.partition(":")
    if not first or not second or NAME.fullmatch(name) is None:
        raise ValueError("is not name:role:hash")
    if role.upper() not in UserRole.__members__:
        raise ValueError(f"has the role {role!r}, not viewer, operator or admin")
    parts = password_hash.split("$")
    if len(parts) != 6 or parts[0] != "scrypt" or not all(map(str.isdigit, parts[1:4])):
        raise ValueError("has a hash that is not scrypt's")
    if int(parts[1]) > SCRYPT_N_MAX or int(parts[2]) > 32 or int(parts[3]) > 16:
        raise ValueError("has a hash that takes too much memory or time")
    return ConsoleUser(name, UserRole[role.upper()], password_hash)


def write_users(path: Path, users: Mapping[str, ConsoleUser]) -> None:
    """Replace a users file as a whole, readable by its owner only."""
    text = "".join(
        f"{user.name}:{user.role.word}:{user.password_hash}\n"
        for user in sorted(users.values(), key=lambda user: user.name)
    )
    swap_file(path, text.encode(), private=True)
