"""RocketMQ's own mqadmin, and ours, at a cluster of ours and at one of Java's in the same state:
the same commands print the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio
from mqadmin_calls import failed, mqadmin
from mqadmin_side_by_side import (
    BROKER,
    Side,
    both_sides,
    differences,
    java_prints,
    java_prints_on_both,
    plain_document,
    plain_text,
)
from processes import java_home

from triomq import MessageQueue, Producer

pytestmark = [
    pytest.mark.compat,
    pytest.mark.slow,
    pytest.mark.feature("169a"),
    pytest.mark.feature("169b"),
]
STATE = """
updateTopic -b ADDR -t T -r 2 -w 2
updateTopic -b ADDR -t U -r 1 -w 1
updateTopic -b ADDR -t %RETRY%G -r 1 -w 1
updateTopic -b ADDR -t %RETRY%H -r 1 -w 1
updateSubGroup -b ADDR -g G -r 3
updateSubGroup -b ADDR -g H
"""
BEFORE = """
clusterList
clusterList -m
brokerStatus -b ADDR
topicList
topicRoute -t T
topicRoute -t T -l
topicStatus -t T
topicClusterList -t T
consumerProgress
consumerProgress -g G
statsAll -t T
getBrokerConfig -b ADDR
getNamesrvConfig
getConsumerConfig -g G
brokerConsumeStats -b ADDR
queryMsgByKey -t T -k k1
queryMsgByKey -t T -k even -p T
queryCq -t T -q 0 -i 0 -b ADDR
haStatus -b ADDR
haStatus -c TestCluster
exportMetadata -c TestCluster -f FOLDER
exportConfigs -c TestCluster -f FOLDER
exportMetrics -c TestCluster -f FOLDER
topicRoute -t nowhere
topicStatus -t nowhere
"""
READERS = """
queryMsgByOffset -t T -b broker-a -i 0 -o 1
printMsg -t T
printMsg -t T -s even
printMsgByQueue -t T -a broker-a -i 0 -p true -d true -f true
consumeMessage -t T
"""
"""they are members of TOOLS_CONSUMER while they run, which other commands would show"""
CHANGES = """
updateTopic -b ADDR -t V -r 2 -w 3 -p 6
updateTopicPerm -t U -p 4 -b ADDR
updateSubGroup -b ADDR -g I -s false
updateBrokerConfig -b ADDR -k enableMixedMessageType -v true
updateKvConfig -s space -k key -v value
updateOrderConf -t T -m put -v broker-a:2
updateNamesrvConfig -k orderMessageEnable -v true
setConsumeMode -b ADDR -t T -g H -m POP -q 1
resetOffsetByTime -g H -t T -s 0
skipAccumulatedMessage -g G -t T
cleanExpiredCQ -b ADDR
cleanUnusedTopic -b ADDR
deleteExpiredCommitLog -b ADDR
exportPopRecord -b ADDR -d true
"""
AFTER = """
topicRoute -t T
topicRoute -t U
topicRoute -t V
consumerProgress -g G
consumerProgress -g H
getConsumerConfig -g I
updateOrderConf -t T -m get
cloneGroupOffset -s G -d H -t T
deleteKvConfig -s space -k key
checkMsgSendRT -t V -a 4
sendMsgStatus -b broker-a -c 2
"""
WIPE = "wipeWritePerm -b broker-a"
LAST = """
topicRoute -t T
topicStatus -t V
consumerProgress -g H
brokerConsumeStats -b ADDR
deleteSubGroup -b ADDR -g I
addWritePerm -b broker-a
"""
BLOCKS = [block.strip().splitlines() for block in (BEFORE, READERS, CHANGES, AFTER, WIPE, LAST)]
NOT_AT_4 = {
    "haStatus": "came with 5",
    "exportPopRecord": "came with 5",
    "setConsumeMode": "came with 5",
    "queryMsgByKey -t T -k even -p T": "came with 5.5",
    "topicList": "4 has fewer topics of its own",
    "exportConfigs": "its mqadmin wants filterServerNums, which 5 dropped",
    "resetOffsetByTime": "4 refuses a group that never had a member",
    "skipAccumulatedMessage": "4 lets mqadmin do it, which prints other columns",
}
"""commands that are not compared with 4.9.4"""


def at(version: str, line: str) -> bool:
    """Whether a line is compared with that version."""
    return version != "4.9.4" or not NOT_AT_4.keys() & {line, line.split()[0]}


@attrs.frozen
class Clusters:
    """Both clusters, and what RocketMQ's mqadmin prints at them."""

    version: str
    ours: Side
    java: Side
    ours_documents: dict[str, Any]
    java_documents: dict[str, Any]
    ours_prints: dict[tuple[int, str], str]
    java_prints: dict[tuple[int, str], str]
    files_by_us: dict[str, Any]
    """what our mqadmin exports from Java's cluster, and RocketMQ's from both"""
    ours_files: dict[str, Any]
    java_files: dict[str, Any]


def commands(version: str) -> list[list[str]]:
    """The blocks, with the commands of that version."""
    return [[line for line in block if at(version, line)] for block in BLOCKS]


async def call(side: Side, line: str) -> Any:
    # RocketMQ's asks nothing before it deletes something.
    yes = ["--yes"] if line.startswith(("deleteKvConfig", "deleteSubGroup")) else []
    return await mqadmin(*side.words(line), *yes, "-n", side.namesrv, "--json")


async def prepare(side: Side) -> dict[str, Any]:
    """Bring a side into the state, and ask it with our mqadmin before anything else does."""
    with trio.fail_after(10):  # a broker of 4.9.4 has no figures in its first second
        while (await call(side, "brokerStatus -b ADDR")).code != 0:
            await trio.sleep(0.1)
    for line in STATE.strip().splitlines():
        assert (await call(side, line)).code == 0, line
    async with Producer(side.namesrv, group="shop") as producer:
        for number in range(4):
            await producer.send(
                "T",
                b"body %d" % number,
                tag=("even", "odd")[number % 2],
                keys=[f"k{number}"],
                queue=MessageQueue("T", BROKER, number // 3),
            )
    assert (await call(side, "resetOffsetByTime -g G -t T -s 0")).code == 0
    documents = {}
    for line in [*BLOCKS[0], *BLOCKS[1]]:
        done = await call(side, line)
        text = done.err if done.code not in (0, 3) else None
        documents[line] = {"failure": text} if text else done.document
    return documents


EXPORTS = ("metadata.json", "configs.json", "metrics.json")


def exported(side: Side) -> dict[str, Any]:
    return {name: json.loads((side.folder / name).read_text()) for name in EXPORTS}


@pytest.fixture(scope="module", params=["5.5.0", "4.9.4"])
def clusters(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clusters]:
    version: str = request.param
    if java_home(version) is None:
        pytest.skip(f"the Java peers {version} are not installed: run `make peers`")
    with both_sides(version, tmp_path_factory.mktemp("sides")) as (ours, java):
        documents = [trio.run(prepare, side) for side in (ours, java)]
        by_us = exported(java)
        prints = java_prints_on_both(version, (ours, java), commands(version))
        files = [exported(side) for side in (ours, java)]
        yield Clusters(version, ours, java, *documents, *prints, by_us, *files)


# --- what differs, and why

MASKS = (
    (r"V\d_\d+_\d+", "VERSION"),
    (r"\d+\.\d+", "NUMBER"),  # rates, shares of a disk, milliseconds
    (r"\b\d+-\d+\(", "TIMER("),  # Java's wheel is read once a second
    (r"OK, \d+", "OK, COUNT"),  # topics of a broker
    (r"\b(true|SEND_OK) \d+$", r"\1 RT"),
    (r"\brt=\d+ms", "rt=RT"),
    (r"(broker-a 0 0 4) \d+$", r"\1 READ"),  # clusterList -m: other commands read meanwhile
    (r"(NUMBER NUMBER) \d+ \d+$", r"\1 DAY"),  # statsAll: Java samples every 10 s, and so do we
)
"""different in every run, or by right"""
MASKS_AT_4 = (
    (r"\b(storeSize|commitLogOffset|physicOffset|physicSize)=\d+", r"\1=PLACE"),
    (r"(?i)(CommitLog Offset: )\d+", r"\1PLACE"),
    (r"(?i)(properties[:=] ?)\{[^}]*\}", r"\1{}"),  # without MSG_REGION and TRACE_ON
    (r"See https?://\S+", "See the FAQ"),
)
PAIRS = ("brokerStatus", "getBrokerConfig", "getNamesrvConfig")
"""commands that print what a server says of itself: compared are the names that both have"""
OWN_VALUES = re.compile(
    r"""
    Tps$ | Latency | DiskRatio | DirCapacity | ^runtime$ | Timestamp | Version | EntireTimeMax
    | DistributeTime | AverageSize | ^timer | BehindBytes$ | HowManyData | ^getMessage | ^msgGet
    | ThreadPoolNums$ | ThreadNums$ | Threads$ | [Pp]ort$ | [Pp]ath | brokerIP2 | WorkerThreads
    | shutdownWaitTimeSeconds | flushConsumeQueueThoroughInterval | inSyncReplicas | useTLS
    | CheckInterval | Commitlog$ | ^registerBrokerTimeoutMills$ | ^syncBrokerMetadataPeriod$
    """,
    re.VERBOSE,
)
"""names whose values differ by right: figures of a moment, numbers of threads, places, and how
often a broker asks its controllers (at ours the lease of a master depends on it)
"""
ONLY_JAVA = {"remainTransientStoreBufferNumbs"}
"""figures of brokerStatus that our brokers do not have: they have no such buffers"""
FIGURES = {"version", "rocketmqVersion", "inTps", "outTps", "timerReadBehind", "cpuNum"}
FIGURES |= {"topicPutTps", "oldestMessageHours", "diskRatio", "pageCacheLockMs", "in24h", "out24h"}
FIGURES |= {"commitLogDiskRatio", "consumeQueueDiskRatio", "messageAverageSize", "totalTps", "tps"}
"""keys of our documents with such values"""
FIGURES_AT_4 = {"storeSize", "commitLogOffset", "size", "properties", "active", "filterServerNums"}
FIGURES_AT_4 |= {"ackQueueSize", "ackQueueWaitMs", "timerOffsetBehind", "timerCongestion"}
FIGURES_AT_4 |= {"timerInTps", "timerOutTps"}
OWN_VALUES_AT_4 = {"commitLogMaxOffset", "putMessageSizeTotal", "earliestMessageTimeStamp"}


def lines_of(clusters: Clusters, side: Side, text: str) -> list[str]:
    """What a command printed; Java's topics of RocksDB are left out."""
    lines = [one for one in plain_text(side, text) if "ROCKSDB" not in one]
    for pattern, word in (*MASKS, *(MASKS_AT_4 if clusters.version == "4.9.4" else ())):
        lines = [re.sub(pattern, word, line) for line in lines]
    return sorted(lines)


def pairs_of(lines: list[str]) -> dict[str, str]:
    """``name : value`` and ``name = value``."""
    found = (re.match(r"([\w.-]+) ?[:=] ?(.*)", one) for one in lines)
    return {match[1]: match[2] for match in found if match is not None}


def common_pairs(
    clusters: Clusters, ours: dict[str, Any], theirs: dict[str, Any], line: str
) -> list[str]:
    """Where the values differ of the names that both have; too few of them are an error."""
    own_values = OWN_VALUES_AT_4 if clusters.version == "4.9.4" else set()
    names = {name for name in ours.keys() & theirs.keys() if not OWN_VALUES.search(name)}
    names -= own_values
    assert len(names) > 3, line
    if line.startswith("brokerStatus"):
        own = {name for name in theirs.keys() - ours.keys() if "DiskRatio_" not in name}
        assert own <= ONLY_JAVA, own
    return differences({name: ours[name] for name in names}, {name: theirs[name] for name in names})


@pytest.mark.compatible("admin: side by side", peer="java-client-{clusters}")
def test_java_s_mqadmin_prints_the_same(clusters: Clusters) -> None:
    found: dict[str, Any] = {}
    for command, text in clusters.ours_prints.items():
        number, line = command
        ours = lines_of(clusters, clusters.ours, text)
        theirs = lines_of(clusters, clusters.java, clusters.java_prints[command])
        if line.startswith(PAIRS):
            if wrong := common_pairs(clusters, pairs_of(ours), pairs_of(theirs), line):
                found[line] = wrong
        elif ours != theirs:
            found[f"{number} {line}"] = (
                sorted(set(ours) - set(theirs)),
                sorted(set(theirs) - set(ours)),
            )
    assert found == {}, json.dumps(found, indent=1)
    failures = {
        line: text for (_, line), text in clusters.ours_prints.items() if "Exception" in text
    }
    meant = {"topicRoute -t nowhere", "topicStatus -t nowhere"}
    if clusters.version == "4.9.4":
        meant.add("consumerProgress -g H")  # not reset there, so it has no offsets at first
    assert set(failures) == meant, failures


def without_figures(clusters: Clusters, value: Any) -> Any:
    """A document without what differs by right."""
    figures = FIGURES | FIGURES_AT_4 if clusters.version == "4.9.4" else FIGURES
    if isinstance(value, dict):
        return {
            key: without_figures(clusters, member)
            for key, member in value.items()
            if key not in figures
        }
    if isinstance(value, list):
        return [
            without_figures(clusters, member) for member in value if "ROCKSDB" not in str(member)
        ]
    return value


def plain(clusters: Clusters, side: Side, document: Any) -> Any:
    return without_figures(clusters, plain_document(side, document))


@pytest.mark.compatible("admin: side by side", peer="java-server-{clusters}")
def test_our_mqadmin_prints_the_same(clusters: Clusters) -> None:
    found: dict[str, Any] = {}
    for line, document in clusters.ours_documents.items():
        if not at(clusters.version, line):
            continue
        ours = plain(clusters, clusters.ours, document)
        theirs = plain(clusters, clusters.java, clusters.java_documents[line])
        if line.startswith(PAIRS):
            servers = [next(iter(side.values())) for side in (ours, theirs)]
            (mine,), (yours,) = (list(server.values()) for server in servers)
            wrong = common_pairs(clusters, mine, yours, line)
        else:
            wrong = differences(ours, theirs)
        if wrong:
            found[line] = wrong
    assert found == {}, json.dumps(found, indent=1)


def test_exported_files_are_the_same(clusters: Clusters) -> None:
    """Those of RocketMQ's mqadmin at both clusters; ours writes what it writes at Java's."""
    for name in EXPORTS:
        at_ours = plain(clusters, clusters.ours, clusters.ours_files[name])
        at_java = plain(clusters, clusters.java, clusters.java_files[name])
        by_us = plain(clusters, clusters.java, clusters.files_by_us[name])
        if clusters.version == "4.9.4":  # which has fewer settings
            by_us, at_ours = common_members(by_us, at_java), common_members(at_ours, at_java)
        assert differences(at_ours, at_java) == [], name
        assert differences(by_us, at_java) == [], name


def common_members(value: Any, other: Any) -> Any:
    """A document without the members that the other does not have."""
    if isinstance(value, dict) and isinstance(other, dict):
        return {key: common_members(value[key], other[key]) for key in value if key in other}
    return value


# --- users


async def document(side: Side, line: str) -> Any:
    done = await mqadmin(*side.words(line), "-n", side.namesrv, "--json")
    assert done.code == 0, done
    return done.document


def rows(text: str) -> list[list[str]]:
    """The rows of a printed table, cells between two blanks or more."""
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("clusters", ["5.5.0"], indirect=True)
@pytest.mark.compatible("admin: users", peer="java-server-5.5.0")
@pytest.mark.compatible("admin: users", peer="java-client-5.5.0")
async def test_each_mqadmin_reads_what_the_other_wrote(clusters: Clusters) -> None:
    """Users, their rights, and settings that only Java's brokers keep."""
    one = clusters.java
    await document(one, "createUser -c TestCluster -u alice -p secret-a -t Normal")
    await document(one, "createUser -b ADDR -u root -p secret-r -t Super")
    await document(one, "updateUser -b ADDR -u alice -s disable")
    await document(
        one, "createAcl -b ADDR -s User:alice -r Topic:x,Group:* -a Pub,Sub -d Allow -i 192.168.0.1"
    )
    await document(one, "updateColdDataFlowCtrGroupConfig -b ADDR -g G -v 1024")
    await document(one, "setCommitLogReadAheadMode -b ADDR -m 1")
    await document(one, "resetMasterFlushOffset -b ADDR -o 0")
    copied = await document(one, "copyUser -f ADDR -t ADDR")
    assert copied["copied"] == {"alice": "updated", "root": "updated"}
    copied = await document(one, "copyAcl -f ADDR -t ADDR -s User:alice")
    assert copied["copied"] == {"User:alice": "updated"}
    prints = await trio.to_thread.run_sync(
        java_prints,
        "5.5.0",
        one,
        [
            [
                "listUser -b ADDR",
                "getAcl -b ADDR -s User:alice",
                "listAcl -b ADDR",
                "getColdDataFlowCtrInfo -b ADDR",
            ],
            [
                "createUser -b ADDR -u bob -p secret-b -t Normal",
                "updateUser -b ADDR -u alice -s enable",
                "updateAcl -b ADDR -s User:alice -r Topic:x -a Sub -d Deny",
                "removeColdDataFlowCtrGroupConfig -b ADDR -g G",
            ],
        ],
    )
    listed = {line: text for (_, line), text in prints.items()}
    users = [["alice", "secret-a", "Normal", "disable"], ["root", "secret-r", "Super", "enable"]]
    assert rows(listed["listUser -b ADDR"]) == users, "with their passwords"
    rights = [
        ["User:alice", "Custom", resource, "[Pub,", "Sub]", "[192.168.0.1]", "Allow"]
        for resource in ("Topic:x", "Group:*")
    ]
    assert rows(listed["getAcl -b ADDR -s User:alice"]) == rights
    assert rows(listed["listAcl -b ADDR"]) == rights
    assert '"G":1024' in listed["getColdDataFlowCtrInfo -b ADDR"].replace(" ", "")

    known = (await document(one, "listUser -b ADDR"))["brokers"][one.broker]
    assert [(user["username"], user["userType"], user["userStatus"]) for user in known] == [
        ("alice", "Normal", "enable"),
        ("bob", "Normal", "enable"),
        ("root", "Super", "enable"),
    ]
    assert "secret" not in (await mqadmin("getUser", "-b", one.broker, "-u", "bob")).out
    acl = (await document(one, "getAcl -b ADDR -s User:alice"))["brokers"][one.broker]
    assert [(row["resource"], row["actions"], row["decision"]) for row in acl] == [
        ("Topic:x", ["Sub"], "Deny"),
        ("Group:*", ["Pub", "Sub"], "Allow"),
    ]
    table = await document(one, "getColdDataFlowCtrInfo -b ADDR")
    assert table["brokers"][one.broker]["configTable"] == {}

    line = "updateAcl --dry-run -b ADDR -s User:alice -r Topic:x -a Pub -d Allow"
    (rule,) = (await document(one, line))["changes"]
    assert rule["subject"] == "rules of User:alice"
    assert [rule[side]["Topic:x"]["decision"] for side in ("before", "after")] == ["Deny", "Allow"]
    assert rule["before"]["Group:*"] == rule["after"]["Group:*"]
    line = "updateUser --dry-run -b ADDR -u bob -p secret-c"
    (user,) = (await document(one, line))["changes"]
    assert user["subject"] == "user bob"
    assert "secret-" not in str(user)
    assert user["before"]["password"] != user["after"]["password"]
    (gone,) = (await document(one, "deleteUser --dry-run -b ADDR -u bob"))["changes"]
    assert (gone["before"]["username"], gone["after"]) == ("bob", None)

    await document(one, "deleteAcl --yes -b ADDR -s User:alice -r Topic:x")
    filtered = (await document(one, "listAcl -b ADDR -s alice"))["brokers"][one.broker]
    assert [row["resource"] for row in filtered] == ["Group:*"]
    await document(one, "deleteAcl --yes -b ADDR -s User:alice")
    await document(one, "deleteUser --yes -b ADDR -u bob")
    names = (await document(one, "listUser -b ADDR -f o"))["brokers"][one.broker]
    assert [user["username"] for user in names] == ["root"]


@pytest.mark.parametrize("clusters", ["5.5.0"], indirect=True)
async def test_refusals_of_java_say_what_to_do(clusters: Clusters) -> None:
    one = clusters.java

    async def refused(line: str, code: int, *words: str) -> bool:
        return failed(await mqadmin(*one.words(line), "-n", one.namesrv), code, *words)

    await document(one, "createUser -b ADDR -u carol -p secret")
    assert await refused("createUser -b ADDR -u carol -p secret", 1, "carol", "user update")
    assert await refused("updateUser -b ADDR -u nobody -s enable", 4, "nobody", "user create")
    assert await refused("getUser -b ADDR -u nobody", 4, "nobody", "user create")
    assert await refused("getAcl -b ADDR -s User:nobody", 4, "User:nobody", "acl create")
    assert await refused("deleteAcl --yes -b ADDR -s User:nobody", 4, "User:nobody")
    assert await refused(
        "createAcl -b ADDR -s User:nobody -r Topic:x -a Pub -d Allow", 4, "user create"
    )
    assert await refused("createAcl -b ADDR -s nobody -r Topic:x -a Pub -d Allow", 2, "User:name")
    assert await refused("createAcl -b ADDR -s User:x -r Queue:x -a Pub -d Allow", 2, "Topic")
    assert await refused("createAcl -b ADDR -s User:x -r Topic:x -a Read -d Allow", 2, "Pub")
    assert await refused("copyUser -f ADDR -t ADDR -u nobody", 2, "nobody", "carol")
