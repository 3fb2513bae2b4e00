"""Every option of RocketMQ's mqadmin exists under its name, or its absence is listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from java_commands import JAVA
from mqadmin_calls import failed, mqadmin

from triomq.client.admin.arguments import UsageError
from triomq.client.admin.resend import selection
from triomq.client.mqadmin import commands, manual
from triomq.client.mqadmin.command_line import command_help
from triomq.client.mqadmin.commands import commands_of, compaction_log, load, reading
from triomq.client.mqadmin.core.command import COMMON_OPTIONS, Effect
from triomq.client.mqadmin.core.command_list import GROUPS, LIST, VERBS, kebab, title
from triomq.client.mqadmin.core.inapplicable import INAPPLICABLE, REASONS
from triomq.client.mqadmin.core.names import Named, named
from triomq.client.mqadmin.general_help import general_answer, overview
from triomq.remoting.protocol.message_properties import FAILURE

# What `mqadmin` of 5.5.0 and 4.9.4 lists beside these.
NOT_HERE = """
addBroker checkRocksdbCqWriteProgress clusterAclConfigVersion deleteAclConfig
exportMetadataInRocksDB getAclConfig getBrokerLiteInfo getLiteClientInfo getLiteGroupInfo
getLiteTopicInfo getParentTopicInfo remappingStaticTopic removeBroker rocksDBConfigToJson
switchTimerEngine triggerLiteDispatch updateAclConfig updateGlobalWhiteAddr updateStaticTopic
"""
EXTRA = {
    "startMonitoring": {("i", "interval", True, False)},
    "consumerProgress": {("", "alert", True, False), ("", "alert-seconds", True, False)},
}
"""options that only ours has"""
ABSENT: dict[str, dict[str, str]] = {
    "queryMsgById": dict.fromkeys(
        ["sendMessage", "unitName"], "sending a message again is sendMessage's business"
    )
}
EXCLUSIVE = {
    "updateTopic": {"brokerAddr", "clusterName"},
    "brokerStatus": {"brokerAddr", "clusterName"},
    "updateSubGroup": {"brokerAddr", "clusterName"},
    "getBrokerConfig": {"brokerAddr", "clusterName"},
    "updateTopicList": {"brokerAddr", "clusterName"},
    "updateSubGroupList": {"brokerAddr", "clusterName"},
    **{
        name: {"brokerAddr", "clusterName"}
        for name in (
            *("createUser", "deleteUser", "getUser", "listUser"),
            *("createAcl", "updateAcl", "deleteAcl", "getAcl", "listAcl"),
        )
    },
}


def java_options(command: str) -> list[tuple[str, str, bool, bool]]:
    """Return (letter, long name, takes a value, required) of the options of a Java command."""
    options = []
    for entry in filter(None, JAVA[command].split(", ")):
        letter, name, *required = entry.split(" ")
        options.append(
            (
                "" if letter == "-" else letter,
                name.removesuffix("!"),
                not name.endswith("!"),
                bool(required),
            )
        )
    return options


def test_every_other_command_of_java_has_a_reason() -> None:
    """Our list and the reasons name all commands of RocketMQ's mqadmin once: 96 of 5.5.0, and the
    five that only 4.9.4 has.
    """
    assert set(INAPPLICABLE) == set(NOT_HERE.split())
    assert set(INAPPLICABLE).isdisjoint(LIST)
    assert len(JAVA) + len(INAPPLICABLE) == 96 + 5
    assert sum(len(reason.commands) for reason in REASONS) == len(INAPPLICABLE)


@pytest.mark.parametrize("name", INAPPLICABLE)
async def test_a_command_that_does_not_apply_says_why(name: str) -> None:
    reason = INAPPLICABLE[name]
    for words in ([name, "-n", "127.0.0.1:1"], [kebab(name)], [name.upper(), "-x"]):
        assert failed(await mqadmin(*words), 2, name, reason.cause, reason.instead)
    for words in (["help", name], [name, "--help"], [name, "-h"]):
        asked = await mqadmin(*words)
        assert (asked.code, asked.err) == (0, "")
        assert reason.cause in asked.out


def test_the_list_agrees_with_the_modules() -> None:
    """``mqadmin --help`` prints the list without importing a command."""
    folder = Path(commands.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert modules == {listed.module for listed in LIST.values()}
    declared = [(command.name, module) for module in modules for command in commands_of(module)]
    assert sorted(declared) == sorted((name, listed.module) for name, listed in LIST.items())
    assert {listed.group for listed in LIST.values()} == set(GROUPS)


def test_texts_name_the_limits_that_hold() -> None:
    """The texts are in a file, apart from the code with the limits."""
    for name, *limits in (
        ("printMsg", reading.MESSAGES_MAX, reading.BODY_BYTES_MAX >> 20),
        ("printMsgByQueue", reading.MESSAGES_MAX),
        ("dumpCompactionLog", compaction_log.MESSAGES_MAX),
        ("dlqShow", selection.EXAMINED_MAX, selection.KEPT_BYTES_MAX >> 20, FAILURE),
        ("messageReplay", selection.EXAMINED_MAX, selection.KEPT_BYTES_MAX >> 20),
    ):
        assert {str(limit) for limit in limits} <= set(re.findall(r"\w+", load(name).remarks)), name


@pytest.mark.parametrize("name", JAVA)
def test_options_are_java_s(name: str) -> None:
    command = load(name)
    ours = {
        (option.letter, option.name, bool(option.placeholder), option.required)
        for option in command.options
    }
    absent = ABSENT.get(name, {})
    theirs = {option for option in java_options(name) if option[1] not in absent}
    assert ours == theirs | EXTRA.get(name, set())


@pytest.mark.parametrize(("name", "options"), EXCLUSIVE.items())
def test_exclusive_options_are_java_s(name: str, options: set[str]) -> None:
    assert [set(names) for names in load(name).exclusive] == [options]


def test_every_command_has_java_s_common_options() -> None:
    assert {("n", "namesrvAddr"), ("h", "help")} <= {
        (option.letter, option.name) for option in COMMON_OPTIONS
    }


def test_no_option_hides_another() -> None:
    for command in map(load, LIST):
        options = command.accepted
        letters = [option.letter for option in options if option.letter]
        names = [option.name.lower() for option in options]
        assert len(set(letters)) == len(letters), command.name
        assert len(set(names)) == len(names), command.name


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("topic-list", "topicList"),
        ("query-msg-by-unique-key", "queryMsgByUniqueKey"),
        ("TOPICLIST", "topicList"),
    ],
)
def test_names_match_in_other_spellings(alias: str, name: str) -> None:
    assert named([alias]).name == name
    with pytest.raises(UsageError, match="there is no command"):
        named([alias + "xxx"])


SINGLE = {"doctor", "completion", "top"}
"""Commands of our own that have one word."""


def test_every_command_has_a_grouped_name() -> None:
    assert {name for name in LIST if title(name) == name} == SINGLE
    assert {f"{group} {verb}" for group, verbs in VERBS.items() for verb in verbs} == {
        grouped for listed in LIST.values() for grouped in listed.grouped
    }
    for group, verbs in VERBS.items():
        for verb, name in verbs.items():
            assert named([group, verb, "-x"]) == Named(name, ["-x"])
            assert named([group.upper(), verb.upper()]).name == name


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["producer", "-b", "host:1"], "producer"),
        (["producer", "list", "-b", "host:1"], "producer"),
        (["TOPIC", "Create"], "updateTopic"),
        (["topic-list"], "topicList"),
    ],
)
def test_a_word_that_is_a_group_and_a_command(words: list[str], name: str) -> None:
    assert named(words).name == name


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["topic", "lst"], "topic list (topicList)"),
        (["topicLst"], "topic list (topicList)"),
        (["topics", "list"], "topic list (topicList)"),
        (["grup", "lag"], "group lag (consumerProgress)"),
        (["consumerprogres", "-g", "x"], "group lag (consumerProgress)"),
        (["docter"], "doctor"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_name_in_both_forms(
    words: list[str], nearest: str
) -> None:
    with pytest.raises(UsageError, match=f"; the nearest is {re.escape(nearest)}$"):
        named(words)


def test_other_words_are_answered_with_the_list() -> None:
    with pytest.raises(UsageError, match=r"`mqadmin help` lists the commands$"):
        named(["zzz"])
    with pytest.raises(UsageError, match=r"`mqadmin topic` lists the commands$"):
        named(["topic", "zzz"])


def test_a_group_lists_its_commands() -> None:
    for words in (["topic"], ["Topic", "--help"], ["help", "topic"], ["topic", "-h"]):
        text = general_answer(words)
        assert text is not None
        assert text.startswith("usage: mqadmin topic COMMAND")
        for verb, name in VERBS["topic"].items():
            assert f"  {verb} " in text
            assert f"({name})" in text


CHANGING = (
    "add",
    "clean",
    "clone",
    "copy",
    "create",
    "delete",
    "remove",
    "reset",
    "set",
    "skip",
    "update",
    "wipe",
)


def test_commands_that_change_say_so() -> None:
    """Otherwise they would have --watch, and neither --dry-run nor --yes."""
    for name in LIST:
        command = load(name)
        if name.startswith(CHANGING):
            assert command.effect in (Effect.CHANGES, Effect.DESTROYS, Effect.MOVES), name
        if name.startswith("delete") and name != "deleteExpiredCommitLog":
            assert command.effect is Effect.DESTROYS, name
        assert (command.effect is Effect.DESTROYS) is bool(command.loss), name
        if name.endswith(("Resend", "Replay")):
            assert command.effect is Effect.SENDS, name
        assert (command.effect is Effect.SENDS) is bool(command.copies), name
        assert (command.effect is Effect.FOLLOWS) is (command.follow is not None), name


def test_every_help_has_an_example_of_its_command_and_every_option() -> None:
    for command in map(load, LIST):
        text = command_help(command)
        assert f"  mqadmin {title(command.name)}" in text
        assert "(also: )" not in text
        for option in command.accepted:
            assert option.spelling in text
        assert command.name in overview()
        assert title(command.name) in overview()


def test_the_manual_is_up_to_date() -> None:
    docs = Path(__file__).resolve().parents[4] / "docs"
    pages = manual.pages((docs / "mqadmin.md").read_text())
    assert {name: (docs / name).read_text() for name in pages} == pages, "run: make docs"
    assert {f"mqadmin/{path.name}" for path in (docs / "mqadmin").iterdir()} < set(pages)
