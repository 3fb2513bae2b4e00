"""Every option of RocketMQ's mqadmin exists under its name, or its absence is listed. The table has
the declarations of Java's commands (tools/…/command/**, develop, 2025-09): letter, long name,
whether it takes a value.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mqadmin_calls import failed, mqadmin
from own_commands import OWN_COMMANDS

from triomq.client.admin.arguments import UsageError
from triomq.client.mqadmin import commands, manual
from triomq.client.mqadmin.command_line import command_help, find_command
from triomq.client.mqadmin.commands import commands_of, load
from triomq.client.mqadmin.core.command import COMMON_OPTIONS, Effect
from triomq.client.mqadmin.core.command_list import GROUPS, LIST, kebab
from triomq.client.mqadmin.core.grouped_names import VERBS, title
from triomq.client.mqadmin.core.inapplicable import INAPPLICABLE, REASONS
from triomq.client.mqadmin.core.names import Named, named
from triomq.client.mqadmin.general_help import general_answer, overview

# "letter name" takes a value; "letter name!" does not; an upper-case R after it: required.
JAVA: dict[str, str] = {
    "clusterList": "m moreStats!, i interval, c clusterName",
    "brokerStatus": "b brokerAddr, c clusterName",
    "topicList": "c clusterModel!",
    "topicRoute": "t topic R, l list!",
    "topicStatus": "t topic R, c cluster",
    "updateTopic": (
        "b brokerAddr, c clusterName, a attributes, t topic R, r readQueueNums, w writeQueueNums, p"
        " perm, o order, u unit, s hasUnitSub"
    ),
    "deleteTopic": "t topic R, c clusterName R",
    "consumerProgress": "g groupName, t topicName, s showClientIP, c cluster",
    "consumerConnection": "g consumerGroup R, b brokerAddr",
    "producerConnection": "g producerGroup R, t topic R",
    "updateSubGroup": (
        "b brokerAddr, c clusterName, g groupName R, s consumeEnable, m consumeFromMinEnable, d"
        " consumeBroadcastEnable, o consumeMessageOrderly, q retryQueueNums, r retryMaxTimes, p"
        " groupRetryPolicy, i brokerId, w whichBrokerWhenConsumeSlowly, a notifyConsumerIdsChanged,"
        " - attributes"
    ),
    "sendMessage": "t topic R, p body R, k key, c tags, b broker, i qid, m msgTraceEnable",
    "consumeMessage": (
        "t topic R, b brokerName, i queueId, o offset, g consumerGroup, s beginTimestamp, e"
        " endTimestamp, c MessageNumber"
    ),
    "queryMsgByKey": "t topic R, k msgKey R, b beginTimestamp, e endTimestamp, m maxNum, c cluster,"
    " p keyType, l lastKey",
    "queryMsgById": (
        "t topic R, i msgId R, g consumerGroup, d clientId, s sendMessage, u unitName, f"
        " bodyFormat, c cluster"
    ),
    "queryMsgByUniqueKey": (
        "i msgId R, g consumerGroup, d clientId, t topic R, a showAll!, s startTime, e endTime, c"
        " cluster"
    ),
    "queryMsgTraceById": "i msgId R, t traceTopic, b beginTimestamp, e endTimestamp, c maxNum",
    "deleteExpiredCommitLog": "b brokerAddr, c cluster",
    "cleanExpiredCQ": "b brokerAddr, c cluster",
    "cleanUnusedTopic": "b brokerAddr, c cluster",
    "resetOffsetByTime": (
        "g group R, t topic R, s timestamp R, f force, b broker, q queue, o offset, c cluster"
    ),
    "skipAccumulatedMessage": "g group R, t topic R, f force, c cluster",
    "cloneGroupOffset": "s srcGroup R, d destGroup R, t topic R, o offline",
    "getBrokerConfig": "b brokerAddr, c clusterName",
    "updateBrokerConfig": "a updateAllBroker, b brokerAddr, c clusterName, k key R, v value R",
    "getNamesrvConfig": "",
    "updateNamesrvConfig": "k key R, v value R",
    "updateKvConfig": "s namespace R, k key R, v value R",
    "deleteKvConfig": "s namespace R, k key R",
    "updateOrderConf": "m method R, t topic R, v orderConf",
    "wipeWritePerm": "b brokerName R",
    "addWritePerm": "b brokerName R",
    "updateTopicPerm": "b brokerAddr, c clusterName, p perm R, t topic R",
    "deleteSubGroup": "b brokerAddr, c clusterName, g groupName R, r removeOffset",
    "getConsumerConfig": "g groupName R",
    "setConsumeMode": "b brokerAddr, c clusterName, g groupName R, m mode R, q popShareQueueNum,"
    " t topicName R",
    "brokerConsumeStats": "b brokerAddr R, l level, o order, t timeoutMillis",
    "producer": "b broker R",
    "topicClusterList": "t topic R",
    "updateTopicList": "b brokerAddr, c clusterName, f filename R",
    "updateSubGroupList": "b brokerAddr, c clusterName, f filename R",
    "queryCq": "b broker, c count, g consumer, i index R, q queue R, t topic R",
    "consumerStatus": "b brokerAddr, g consumerGroup R, i clientId, s jstack!",
    "statsAll": "a activeTopic!, t topic",
    "printMsg": (
        "t topic R, c charsetName, s subExpression, b beginTimestamp, e endTimestamp, d printBody,"
        " l lmqParentTopic"
    ),
    "printMsgByQueue": (
        "t topic R, a brokerName R, i queueId R, c charsetName, s subExpression, b beginTimestamp,"
        " e endTimestamp, p print, d printBody, f calculate"
    ),
    "queryMsgByOffset": (
        "t topic R, b brokerName R, i queueId R, o offset R, f bodyFormat, r routeTopic"
    ),
    "dumpCompactionLog": "f file",
    "checkMsgSendRT": "t topic R, a amount, s size",
    "sendMsgStatus": "b brokerName R, s messageSize, c count",
    "clusterRT": "a amount, s size, c cluster, p print, m machine, i interval",
    "haStatus": "c clusterName, b brokerAddr, i interval",
    "resetMasterFlushOffset": "b brokerAddr, o offset",
    "allocateMQ": "t topic R, i ipList R",
    "startMonitoring": "",
    "exportMetadata": (
        "c clusterName, b brokerAddr, f filePath, t topic!, g subscriptionGroup!, s specialTopic!"
    ),
    "exportConfigs": "c clusterName R, f filePath",
    "exportMetrics": "c clusterName R, f filePath",
    "exportPopRecord": "c clusterName, b brokerAddr, d dryRun",
    "getColdDataFlowCtrInfo": "b brokerAddr, c clusterName",
    "updateColdDataFlowCtrGroupConfig": (
        "b brokerAddr, c clusterName, g consumerGroup R, v threshold R"
    ),
    "removeColdDataFlowCtrGroupConfig": "b brokerAddr, c clusterName, g consumerGroup R",
    "setCommitLogReadAheadMode": "b brokerAddr, c clusterName, m commitLogReadAheadMode R",
    "createUser": "b brokerAddr, c clusterName, u username R, p password R, t userType",
    "updateUser": "b brokerAddr, c clusterName, u username R, p password, t userType, s userStatus",
    "deleteUser": "b brokerAddr, c clusterName, u username R",
    "getUser": "b brokerAddr, c clusterName, u username",
    "listUser": "b brokerAddr, c clusterName, f filter",
    "copyUser": "f fromBroker R, t toBroker R, u usernames",
    "createAcl": (
        "b brokerAddr, c clusterName, s subject R, r resources R, a actions R, d decision R, i"
        " sourceIp"
    ),
    "updateAcl": (
        "b brokerAddr, c clusterName, s subject R, r resources R, a actions R, d decision R, i"
        " sourceIp"
    ),
    "deleteAcl": "b brokerAddr, c clusterName, s subject R, r resources",
    "getAcl": "b brokerAddr, c clusterName, s subject",
    "listAcl": "b brokerAddr, c clusterName, s subject, r resource",
    "copyAcl": "f fromBroker R, t toBroker R, s subjects",
}
# What `mqadmin` of 5.5.0 and 4.9.4 lists beside these.
NOT_HERE = """
addBroker checkRocksdbCqWriteProgress cleanBrokerMetadata clusterAclConfigVersion deleteAclConfig
electMaster exportMetadataInRocksDB getAclConfig getBrokerEpoch getBrokerLiteInfo
getControllerConfig getControllerMetaData getLiteClientInfo getLiteGroupInfo getLiteTopicInfo
getParentTopicInfo getSyncStateSet remappingStaticTopic removeBroker rocksDBConfigToJson
switchTimerEngine triggerLiteDispatch updateAclConfig updateControllerConfig updateGlobalWhiteAddr
updateStaticTopic
"""
EXTRA = {
    "startMonitoring": {("i", "interval", True, False)},
    "consumerProgress": {("", "alert", True, False), ("", "alert-seconds", True, False)},
}
"""options that only ours has"""
ABSENT: dict[str, dict[str, str]] = {
    "queryMsgById": dict.fromkeys(
        ["sendMessage", "unitName"], "sending a message again is sendMessage's business"
    ),
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


def test_the_table_names_all_our_commands() -> None:
    assert set(LIST) == set(JAVA) | OWN_COMMANDS


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


@pytest.mark.parametrize("name", JAVA)
def test_options_are_java_s(name: str) -> None:
    command = find_command(name)
    ours = {
        (option.letter, option.name, bool(option.placeholder), option.required)
        for option in command.options
    }
    absent = ABSENT.get(name, {})
    theirs = {option for option in java_options(name) if option[1] not in absent}
    assert ours == theirs | EXTRA.get(name, set())


@pytest.mark.parametrize(("name", "options"), EXCLUSIVE.items())
def test_exclusive_options_are_java_s(name: str, options: set[str]) -> None:
    assert [set(names) for names in find_command(name).one_of] == [options]


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
    assert find_command(alias).name == name
    with pytest.raises(UsageError, match="there is no command"):
        find_command(alias + "xxx")


SINGLE = {"doctor", "completion", "top"}
"""Commands of our own that have one word."""


def test_every_command_has_a_grouped_name() -> None:
    assert {name for name in LIST if title(name) == name} == SINGLE & set(LIST)
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
    docs = Path(__file__).resolve().parents[3] / "docs"
    pages = manual.pages()
    assert {name: (docs / name).read_text() for name in pages} == pages, "run: make docs"
    assert {f"mqadmin/{path.name}" for path in (docs / "mqadmin").iterdir()} < set(pages)
