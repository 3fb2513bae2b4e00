"""Credentials of calls become fields of requests, which one hook verifies."""

from __future__ import annotations

import pytest

from triomq.remoting.messaging.call_credentials import call_credentials
from triomq.remoting.protocol.signing import is_signed_by

DATE = "20261126T235959Z"
# By openssl: printf %s 20261126T235959Z | openssl dgst -sha1 -hmac secret
HEX = "137591c70ea6d83b5315336cf00865ab570f93ce"


def metadata(credential: str = "key", signature: str = HEX) -> dict[str, str]:
    return {
        "x-mq-date-time": DATE,
        "authorization": (
            f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time,"
            f" Signature={signature}"
        ),
    }


@pytest.mark.parametrize("credential", ["key", "key//Rocketmq"])
@pytest.mark.parametrize("signature", [HEX, HEX.upper()])
def test_every_client_s_form_is_read(credential: str, signature: str) -> None:
    fields = call_credentials(metadata(credential, signature))
    assert fields["AccessKey"] == "key"
    assert is_signed_by(fields, b"any body", "secret", by_date=True)
    assert not is_signed_by(fields, b"any body", "other", by_date=True)
    later = {**fields, "x-mq-date-time": "20261127T000000Z"}
    assert not is_signed_by(later, b"", "secret", by_date=True)
    # Over the remoting protocol the signature of one call would be good for every request.
    assert not is_signed_by(fields, b"any body", "secret")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"authorization": ""},
        {"authorization": "Basic Credential=key"},
        metadata(credential=""),  # Python's client sends it without credentials
    ],
)
def test_calls_without_credentials_have_no_fields(given: dict[str, str]) -> None:
    assert call_credentials(given) == {}


def test_a_missing_signature_fits_nothing() -> None:
    fields = call_credentials({"authorization": "MQv2-HMAC-SHA1 Credential=key"})
    assert not is_signed_by(fields, b"", "secret")
