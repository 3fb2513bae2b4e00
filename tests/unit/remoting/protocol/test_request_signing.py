"""Signatures: a vector of two other implementations, the order of fields, and covered fields."""

from __future__ import annotations

import base64
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.remoting.client.rpc_hooks import Signing
from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.protocol import signing
from triomq.remoting.protocol.codes import RequestCode, SerializeType
from triomq.remoting.protocol.command import Command, decode_frame, encode_command, request
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.signing import (
    Credentials,
    content_to_sign,
    is_signed_by,
    signature_of,
    signed,
)

ME = Credentials(access_key="rocketmq2", secret_key="12345678")
# equal in Java 5.5.0 and 4.9.4 (tests/compat/test_signing_with_java.py)
VECTOR = "CzVXK/1kvkQq5R0Z6JW6kdPb6SU="


def test_the_vector() -> None:
    ext = {"topic": "TopicA", "queueId": "3", "AccessKey": "rocketmq2"}
    assert content_to_sign(ext, b"body") == b"rocketmq23TopicAbody"
    assert signature_of(b"rocketmq23TopicAbody", "12345678") == VECTOR
    assert signed({"topic": "TopicA", "queueId": "3"}, b"body", ME)["Signature"] == VECTOR


@given(st.text(min_size=1, max_size=100), st.binary())
def test_a_signature_is_hmac_sha1_also_with_a_key_longer_than_a_block(
    key: str, content: bytes
) -> None:
    expected = base64.b64encode(hmac.digest(key.encode(), content, "sha1")).decode()
    assert signature_of(content, key) == expected


def test_names_are_sorted_as_java_sorts() -> None:
    names = [
        "topic",
        "a",
        "_UNIQUE_KEY_QUERY",
        "SecurityToken",
        "AccessKey",
        "\U0001f600",
        "\uffee",
    ]
    ext = {name: f"<{number}>" for number, name in enumerate(names)}
    # A surrogate pair sorts before U+FFEE in UTF-16, and behind it by code point.
    assert content_to_sign(ext, b"") == b"<4><3><2><1><0><5><6>"


def test_the_order_of_names_is_kept_for_few_and_short_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names are the clients' to choose."""
    monkeypatch.setattr(signing, "_values", kept := {})
    monkeypatch.setattr(signing, "_VALUES_MAX", 3)
    for name in ["long" * 300, *"abcdef"] * 2:
        assert content_to_sign({name: "1", "Signature": "s", "B": "2"}, b"") == (
            b"12" if name < "B" else b"21"
        )
    assert [names[0] for names in kept] == ["a", "b", "c"]
    assert content_to_sign({"Signature": "s"}, b"body") == b"body"


def test_a_second_signature_replaces_the_first_and_the_token_is_covered() -> None:
    once = signed({"topic": "T"}, b"", ME)
    assert signed(once, b"", ME) == once
    with_token = signed(
        {"topic": "T"},
        b"",
        Credentials(access_key="rocketmq2", secret_key="12345678", security_token="sts"),
    )
    assert with_token["SecurityToken"] == "sts"
    assert with_token["Signature"] == signature_of(b"rocketmq2stsT", "12345678")


def test_old_clients_leave_one_field_out() -> None:
    ext = {"AccessKey": "rocketmq2", "_UNIQUE_KEY_QUERY": "true", "key": "k"}
    unsigned = {**ext, "Signature": signature_of(b"rocketmq2k", "12345678")}
    for version in (0, 399):
        assert is_signed_by(unsigned, b"", "12345678", version=version)
    assert not is_signed_by(unsigned, b"", "12345678", version=400)
    assert is_signed_by(
        {**ext, "Signature": signature_of(b"rocketmq2truek", "12345678")},
        b"",
        "12345678",
        version=400,
    )


fields = st.dictionaries(st.text(min_size=1, max_size=12), st.text(max_size=20), max_size=8)


@given(ext=fields, body=st.binary(max_size=50), serialize=st.sampled_from(list(SerializeType)))
def test_a_signature_is_verified_and_any_change_is_detected(
    ext: dict[str, str], body: bytes, serialize: SerializeType
) -> None:
    command = Command(310, body=body, ext=ext or None, serialize=serialize)
    Signing(ME).before_request("here:1", command)
    arrived = decode_frame(encode_command(command)[4:])
    assert arrived.ext is not None
    assert is_signed_by(arrived.ext, arrived.body, "12345678", version=arrived.version)
    assert not is_signed_by(arrived.ext, arrived.body, "12345679", version=arrived.version)
    assert not is_signed_by(
        arrived.ext, bytes(arrived.body) + b"!", "12345678", version=arrived.version
    )
    assert not is_signed_by(
        {**arrived.ext, "zzz": "more"}, arrived.body, "12345678", version=arrived.version
    )
    assert not is_signed_by({**arrived.ext, "Signature": "\ud800"}, arrived.body, "12345678")


def test_sends_of_version_2_are_signed_with_their_short_names() -> None:
    header = SendMessageHeader(
        producer_group="G",
        topic="TopicA",
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
    )
    command = request(RequestCode.SEND_MESSAGE_V2, header, b"body")
    Signing(ME).before_request("here:1", command)
    assert command.ext is not None
    by_name = [command.ext[name] for name in sorted(command.ext) if name != "Signature"]
    assert {"a", "b"} <= set(command.ext)
    assert command.ext["Signature"] == signature_of("".join(by_name).encode() + b"body", "12345678")


def test_binary_headers_carry_no_empty_values() -> None:
    # Java decodes them as absent, and would sign the text "null".
    assert "remark" not in signed({"remark": "", "topic": "T"}, b"", ME, binary=True)
    assert signed({"remark": "", "topic": "T"}, b"", ME)["remark"] == ""


def test_secrets_are_not_shown() -> None:
    text = repr(Credentials(access_key="rocketmq2", secret_key="12345678", security_token="token"))
    assert "12345678" not in text
    assert "token" not in text.replace("security_token", "")
    for wrong in ({"access_key": "", "secret_key": "x"}, {"access_key": "x", "secret_key": ""}):
        with pytest.raises(ValueError, match="is empty: give both"):
            Credentials(**wrong)
    with pytest.raises(LocalProtocolError, match="is not text"):
        signed({"queueId": 3}, b"", ME)  # type: ignore[dict-item]
