"""Request signing: who sends a request, proven by a shared secret. Pure; client and server compute the same text.

The signature is Base64(HMAC-SHA1(secret, content)); content is the *values* of all ext fields but ``Signature`` itself, in the
order of their names (UTF-16 code units, as Java sorts), one right after the other in UTF-8, and then the body as it stands in
the frame. Code, opaque number, flag and remark are not covered, and nothing stops a replay: use TLS as well.
Source: acl/…/common/AclClientRPCHook.java, AclUtils.java, AclSigner.java.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping

import attrs

from triomq.remoting.errors import LocalProtocolError
from triomq.remoting.protocol.reprs import masked

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"

_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_UNIQUE_KEY_QUERY_UNSIGNED_VERSION_MAX = 399  # V4_9_3: clients up to here add that field after signing


def _secret(instance: object, attribute: "attrs.Attribute[str]", value: str) -> None:
    if not value:
        raise ValueError(f"{attribute.name} is empty: give both an access key and a secret key")


@attrs.frozen(kw_only=True)
class Credentials:
    """An access key with its secret key, and a security token if a token service handed them out. Secrets do not show in `repr`."""

    access_key: str = attrs.field(validator=_secret, repr=masked)
    secret_key: str = attrs.field(validator=_secret, repr=False)
    security_token: str | None = attrs.field(default=None, repr=False)


def content_to_sign(ext: Mapping[str, str], body: bytes | memoryview, *, version: int | None = None) -> bytes:
    """The signed bytes. *version* is that of the request on the server's side: old clients leave one field out."""
    names = [name for name in ext if name != SIGNATURE]
    if version is not None and version <= _UNIQUE_KEY_QUERY_UNSIGNED_VERSION_MAX and _UNIQUE_KEY_QUERY in ext:
        names.remove(_UNIQUE_KEY_QUERY)
    names.sort(key=_java_order)
    return "".join([ext[name] for name in names]).encode("utf-8", "surrogatepass") + bytes(body)


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def signature_of(content: bytes, secret_key: str) -> str:
    """The value of the field ``Signature``."""
    return base64.b64encode(hmac.digest(secret_key.encode(), content, hashlib.sha1)).decode("ascii")


def signed(
    ext: Mapping[str, str] | None, body: bytes | memoryview, credentials: Credentials, *, binary: bool = False
) -> dict[str, str]:
    """The ext fields with key, token and signature; an older signature is replaced.

    With *binary* (the ROCKETMQ serialisation) empty values are left out: a Java server reads them as absent, and would sign
    the text "null" in their place.
    """
    fields = dict(ext or {})
    for name, value in fields.items():
        if not isinstance(value, str):
            raise LocalProtocolError(f"ext field {name} is no text; a request is signed as it is sent")
    if binary:
        fields = {name: value for name, value in fields.items() if value}
    fields.pop(SIGNATURE, None)
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        fields[SECURITY_TOKEN] = credentials.security_token
    fields[SIGNATURE] = signature_of(content_to_sign(fields, body), credentials.secret_key)
    return fields


def is_signed_by(
    ext: Mapping[str, str], body: bytes | memoryview, secret_key: str, *, version: int | None = None
) -> bool:
    """Whether the field ``Signature`` is that of this secret. Takes the same time wherever the two differ."""
    expected = signature_of(content_to_sign(ext, body, version=version), secret_key)
    return hmac.compare_digest(expected.encode(), ext.get(SIGNATURE, "").encode("utf-8", "surrogatepass"))
