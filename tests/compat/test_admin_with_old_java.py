"""Our mqadmin on a broker of Java 4.9.4, which does not know the requests for the settings of one
topic or group.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mqadmin_calls import mqadmin
from processes import java_broker, java_home, java_name_server

pytestmark = [pytest.mark.compat, pytest.mark.feature("169b"), pytest.mark.timeout(180)]


@pytest.fixture
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if java_home("4.9.4") is None:
        pytest.skip("the Java peers 4.9.4 are not installed: run `make peers`")
    folder = tmp_path_factory.mktemp("java-4")
    with (
        java_name_server("4.9.4", folder / "namesrv") as address,
        java_broker("4.9.4", folder / "broker", "broker-java", address),
    ):
        yield address


@pytest.mark.compatible("admin: topics", "admin: groups", peer="java-server-4.9.4")
async def test_topics_and_groups(namesrv: str) -> None:
    for options, numbers in (
        (("-r", 3, "-w", 3), (3, 3)),
        (("-w", 5), (3, 5)),
    ):  # what is not said keeps its value
        done = await mqadmin(
            "updateTopic", "-c", "TestCluster", "-t", "Old", *options, "-n", namesrv, "--json"
        )
        (config,) = done.document["brokers"].values()
        assert (config["readQueueNums"], config["writeQueueNums"]) == numbers
    for options, numbers in ((("-r", 5), (5, True)), (("-s", "false"), (5, False))):
        done = await mqadmin(
            "updateSubGroup",
            "-c",
            "TestCluster",
            "-g",
            "old-group",
            *options,
            "-n",
            namesrv,
            "--json",
        )
        (config,) = done.document["brokers"].values()
        assert (config["retryMaxTimes"], config["consumeEnable"]) == numbers
    assert "Old" in (await mqadmin("topicList", "-n", namesrv, "--json")).document["topics"]
