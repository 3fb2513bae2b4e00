"""The official Java clients, unmodified, against our cluster of two brokers."""

from __future__ import annotations

import pytest
from processes import java_peer

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

COUNT = 40


@pytest.mark.loss
@pytest.mark.compatible("push", "properties", peer="java-client-{java_version}")
@pytest.mark.compatible("send", peer="java-client-{java_version}", only={"mode": "sync"})
@pytest.mark.compatible("send async", peer="java-client-{java_version}", only={"mode": "async"})
@pytest.mark.compatible("send one-way", peer="java-client-{java_version}", only={"mode": "oneway"})
@pytest.mark.compatible("batch", peer="java-client-{java_version}", only={"mode": "batch"})
@pytest.mark.feature("1a", "1b", "65a", "65b")
@pytest.mark.parametrize("mode", ["sync", "async", "oneway", "batch"])
def test_java_client_sends_and_consumes(our_cluster: str, java_version: str, mode: str) -> None:
    topic = f"Java_{java_version.replace('.', '_')}_{mode}"
    sent = [
        line
        for line in java_peer(java_version, "send", our_cluster, topic, str(COUNT), "TagA", mode)
        if line[0] == "SENT"
    ]
    assert len(sent) == {"sync": COUNT, "async": COUNT, "oneway": 0, "batch": 1}[mode]
    assert {line[1] for line in sent} <= {"SEND_OK"}
    got = [
        line
        for line in java_peer(
            java_version,
            "consume",
            our_cluster,
            topic,
            f"group-{mode}",
            "TagA || Other",
            str(COUNT),
            "60",
        )
        if line[0] == "GOT"
    ]
    assert sorted(line[7] for line in got) == sorted(f"body-{number}" for number in range(COUNT))
    assert {line[2] for line in got} == {"TagA"}
    assert {line[3] for line in got} == {f"java-{number}" for number in range(COUNT)}
    if mode in {"sync", "async"}:
        assert {line[1] for line in got} == {line[2] for line in sent}
        # The consumer sees each message at the queue and offset that the producer was told.
        assert {(line[4], line[5]) for line in got if line[1] == sent[0][2]} == {
            (sent[0][5], sent[0][6])
        }


@pytest.mark.loss
@pytest.mark.compatible("group goes on", peer="java-client-{java_version}")
def test_java_group_resumes_where_it_stopped(our_cluster: str, java_version: str) -> None:
    topic = f"Resume_{java_version.replace('.', '_')}"
    java_peer(java_version, "send", our_cluster, topic, "10", "TagA", "sync")
    java_peer(java_version, "consume", our_cluster, topic, "resuming", "*", "10", "60")
    java_peer(java_version, "send", our_cluster, topic, "7", "TagB", "sync")
    got = [
        line
        for line in java_peer(
            java_version, "consume", our_cluster, topic, "resuming", "*", "7", "60"
        )
        if line[0] == "GOT"
    ]
    assert {line[2] for line in got} == {"TagB"}, "messages of the first round came again"


@pytest.mark.loss
@pytest.mark.compatible("query by key", peer="java-client-{java_version}")
@pytest.mark.feature(46)
def test_java_client_finds_messages_by_key(our_cluster: str, java_version: str) -> None:
    topic = f"Query_{java_version.replace('.', '_')}"
    java_peer(java_version, "send", our_cluster, topic, "20", "TagA", "sync")
    found = [
        line
        for line in java_peer(java_version, "query", our_cluster, topic, "java-3,java-17")
        if line[0] == "FOUND"
    ]
    assert {(line[1], line[3]) for line in found} == {("java-3", "body-3"), ("java-17", "body-17")}
