"""Numbers that peers compare must be Java's."""

import pytest

from triomq.remoting.protocol.codes import (
    PROTOCOL_VERSION,
    LanguageCode,
    RequestCode,
    ResponseCode,
    SerializeType,
    version_name,
)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (0, "V3_0_0_SNAPSHOT"),
        (15, "V3_0_0_FINAL"),
        (16, "V3_0_1_SNAPSHOT"),
        (28, "V3_0_7_SNAPSHOT"),
        (37, "V3_0_11"),
        (45, "V3_0_15"),
        (46, "V3_1_0_SNAPSHOT"),
        (62, "V3_1_8_SNAPSHOT"),
        (85, "V3_2_9"),
        (86, "V3_3_1_SNAPSHOT"),
        (121, "V3_4_9"),
        (211, "V3_9_9"),
        (213, "V4_0_0"),
        (232, "V4_1_0_SNAPSHOT"),
        (317, "V4_5_2"),
        (399, "V4_9_3"),
        (401, "V4_9_4"),
        (413, "V5_0_0"),
        (433, "V5_1_0"),
        (453, "V5_2_0"),
        (473, "V5_3_0"),
        (479, "V5_3_3"),
        (513, "V5_5_0"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
        (9999, "HIGHER_VERSION"),
        (-1, "V3_0_0_SNAPSHOT"),
    ],
)
def test_versions_are_named_as_java_names_them(version: int, name: str) -> None:
    assert version_name(version) == name


def test_every_version_has_its_own_name() -> None:
    names = [version_name(version) for version in range(613)]
    assert len(set(names)) == len(names)


def test_our_version_lets_name_servers_send_standard_json_and_java_clients_use_filters() -> None:
    assert PROTOCOL_VERSION >= 401


def test_codes_that_peers_use_most() -> None:
    assert RequestCode.SEND_MESSAGE_V2 == 310
    assert RequestCode.POP_MESSAGE == 200050
    assert RequestCode.BATCH_ACK_MESSAGE == 200151
    assert ResponseCode.PULL_OFFSET_MOVED == 21
    assert ResponseCode.RPC_TIME_OUT == -1006
    assert LanguageCode.PYTHON == 3
    assert [language.value for language in LanguageCode] == list(range(14))
    assert SerializeType(1) is SerializeType.ROCKETMQ
