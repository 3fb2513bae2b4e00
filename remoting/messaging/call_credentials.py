"""The credentials of a call, as fields of the requests that it becomes. PURE.

Clients of 5.x sign the date of each call: ``authorization: MQv2-HMAC-SHA1 Credential=<key>,
SignedHeaders=x-mq-date-time, Signature=<hex>``. The fields let one hook of the server verify both
kinds of clients (``remoting/protocol/signing.py``). Source:
auth/authentication/builder/DefaultAuthenticationContextBuilder.java.
"""

from __future__ import annotations

from collections.abc import Mapping

from triomq.remoting.protocol.signing import ACCESS_KEY, DATE_TIME, SIGNATURE

AUTHORIZATION = "authorization"
SCHEME = "MQv2-HMAC-SHA1"
_NONE: Mapping[str, str] = {}


def call_credentials(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Return the fields of a call's credentials; empty without any.

    A field that cannot be read is left out: whoever verifies credentials misses it.
    """
    text = metadata.get(AUTHORIZATION)
    if text is None:
        return _NONE
    scheme, _, rest = text.partition(" ")
    parts = dict(_pair(part) for part in rest.split(","))
    # Go's clients append a region: <key>//<region>.
    key = parts.get("Credential", "").partition("/")[0]
    if scheme != SCHEME or not key:
        return _NONE
    return {
        ACCESS_KEY: key,
        SIGNATURE: parts.get("Signature", ""),
        DATE_TIME: metadata.get(DATE_TIME, ""),
    }


def _pair(part: str) -> tuple[str, str]:
    name, _, value = part.strip().partition("=")
    return name, value
