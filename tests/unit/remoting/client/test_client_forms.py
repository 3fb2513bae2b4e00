"""The form of a client's headers: from the caller, or from Java's environment variable."""

import pytest

from triomq.remoting.client.access import Access
from triomq.remoting.client.rpc_hooks import Serialisation, Signing
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import Command, encode_command
from triomq.remoting.protocol.signing import Credentials

CREDENTIALS = Credentials(access_key="key", secret_key="12345678")


@pytest.mark.parametrize(
    ("text", "form"),
    [("", None), ("JSON", SerializeType.JSON), ("rocketmq ", SerializeType.ROCKETMQ)],
)
def test_the_environment_names_the_form(text: str, form: SerializeType | None) -> None:
    assert Access().or_environment({"ROCKETMQ_SERIALIZE_TYPE": text}).serialize is form
    said = Access(serialize=SerializeType.JSON).or_environment(
        {"ROCKETMQ_SERIALIZE_TYPE": "ROCKETMQ"}
    )
    assert said.serialize is SerializeType.JSON
    assert not said.hooks


def test_an_unknown_form() -> None:
    with pytest.raises(ConfigError, match="set it to JSON or ROCKETMQ"):
        Access().or_environment({"ROCKETMQ_SERIALIZE_TYPE": "protobuf"})


def test_requests_are_signed_in_the_form_in_which_they_are_sent() -> None:
    access = Access(serialize=SerializeType.ROCKETMQ, credentials=CREDENTIALS)
    assert [type(hook) for hook in access.options()["hooks"]] == [Serialisation, Signing]


def test_a_code_without_binary_form_is_sent_as_json() -> None:
    hook = Serialisation(SerializeType.ROCKETMQ)
    for code, kind in ((310, 1), (200050, 0)):
        command = Command(code)
        hook.before_request("b:1", command)
        assert encode_command(command)[4] == kind
