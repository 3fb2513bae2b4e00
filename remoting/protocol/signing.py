"""Request signing: the sender of a request proves with a shared secret who it is.

The signature is Base64(HMAC-SHA1(secret, content)). The content is the values of all ext fields
except ``Signature``, in the order of their names (UTF-16 code units, as Java sorts), joined in
UTF-8, and then the body as it is in the frame. Code, opaque number, flag and remark are not
covered, and nothing prevents a replay: use TLS as well. Source:
acl/…/common/AclClientRPCHook.java, AclUtils.java, AclSigner.java.
"""

import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import itemgetter

import attrs

from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.protocol.short_repr import masked

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
DATE_TIME = "x-mq-date-time"
"""In the fields of a gRPC client's request: the only value that it has signed."""

PROXIED_USER = "triomqProxiedUser"
"""In the fields of a proxy's request: the user whose call it is, as the proxy has verified."""

_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
# Clients up to V4_9_3 add that field after signing.
_UNIQUE_KEY_QUERY_UNSIGNED_VERSION_MAX = 399


def _secret(instance: object, attribute: "attrs.Attribute[str]", value: str) -> None:
    if not value:
        raise ValueError(f"{attribute.name} is empty: give both an access key and a secret key")


@attrs.frozen(kw_only=True)
class Credentials:
    """An access key and its secret key, and the security token if a token service issued them.

    ``repr`` shows no secrets.
    """

    access_key: str = attrs.field(validator=_secret, repr=masked)
    secret_key: str = attrs.field(validator=_secret, repr=False)
    security_token: str | None = attrs.field(default=None, repr=False)


def content_to_sign(
    ext: Mapping[str, str], body: bytes | memoryview, *, version: int | None = None
) -> bytes:
    """Return the bytes to sign.

    `version`: on a server, the version of the request: old clients leave one field out.
    """
    names = tuple(ext)
    if (
        version is not None
        and version <= _UNIQUE_KEY_QUERY_UNSIGNED_VERSION_MAX
        and _UNIQUE_KEY_QUERY in ext
    ):
        names = tuple(name for name in names if name != _UNIQUE_KEY_QUERY)
    values = _values.get(names) or _signed_values(names)
    return "".join(values(ext)).encode("utf-8", "surrogatepass") + body


_values: dict[tuple[str, ...], Callable[[Mapping[str, str]], Iterable[str]]] = {}
"""What takes the signed values, in their order, out of fields with these names: clients send the
same names again and again, and a quarter of a check was to sort them.
"""
_VALUES_MAX = 1024
_NAMES_LENGTH_MAX = 1024
"""Together. Names are the clients' to choose: what is longer is sorted each time."""


def _signed_values(names: tuple[str, ...]) -> Callable[[Mapping[str, str]], Iterable[str]]:
    order = sorted((name for name in names if name != SIGNATURE), key=_java_order)
    made = itemgetter(*order) if order else lambda _ext: ()
    if len(_values) < _VALUES_MAX and sum(map(len, names)) <= _NAMES_LENGTH_MAX:
        _values[names] = made
    return made


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def signature_of(content: bytes, secret_key: str) -> str:
    """Return the value of the field ``Signature``."""
    keyed_inner, keyed_outer = _keyed(secret_key)
    inner, outer = keyed_inner.copy(), keyed_outer.copy()
    inner.update(content)
    outer.update(inner.digest())
    return binascii.b2a_base64(outer.digest(), newline=False).decode("ascii")


@lru_cache(maxsize=1024)
def _keyed(secret_key: str) -> "tuple[hashlib._Hash, hashlib._Hash]":
    """Return both states of HMAC-SHA1 with this key (RFC 2104): half of its time goes to them."""
    key = secret_key.encode()
    block = (key if len(key) <= 64 else hashlib.sha1(key).digest()).ljust(64, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in block) for pad in (0x36, 0x5C))
    return hashlib.sha1(inner), hashlib.sha1(outer)


def signed(
    ext: Mapping[str, str] | None,
    body: bytes | memoryview,
    credentials: Credentials,
    *,
    binary: bool = False,
) -> dict[str, str]:
    """Return the ext fields with key, token and signature; replace an older signature.

    `binary`: whether the header is a ROCKETMQ header. Empty values are left out then: a Java server
    reads them as absent, and would sign the text "null" instead.

    Raises: LocalProtocolError for a field that is not text.
    """
    fields = dict(ext or {})
    for name, value in fields.items():
        if not isinstance(value, str):
            raise LocalProtocolError(
                f"ext field {name} is not text; a request is signed as it is sent"
            )
    if binary:
        fields = {name: value for name, value in fields.items() if value}
    fields.pop(SIGNATURE, None)
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        fields[SECURITY_TOKEN] = credentials.security_token
    fields[SIGNATURE] = signature_of(content_to_sign(fields, body), credentials.secret_key)
    return fields


def is_signed_by(
    ext: Mapping[str, str],
    body: bytes | memoryview,
    secret_key: str,
    *,
    version: int | None = None,
    by_date: bool = False,
) -> bool:
    """Return whether the field ``Signature`` was made with this secret.

    ``by_date``: the request is a call of a client that speaks gRPC, which signs the date of its
    call only, in hexadecimal. From other peers that would be a signature for any request. A call
    without a date has no signature: that of a request without fields would do for every call.

    The comparison takes the same time wherever the two differ.
    """
    given = ext.get(SIGNATURE, "")
    if by_date:
        date = ext.get(DATE_TIME, "")
        if not date:
            return False
        expected = hmac.digest(secret_key.encode(), date.encode(), hashlib.sha1).hex()
        given = given.lower()
    else:
        expected = signature_of(content_to_sign(ext, body, version=version), secret_key)
    return given.isascii() and hmac.compare_digest(expected, given)
