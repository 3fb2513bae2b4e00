"""Other ways to register at RocketMQ's own name server: deflated, and in pieces."""

from __future__ import annotations

from pathlib import Path

import processes
import pytest

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]


@pytest.mark.feature("4a")
def test_java_s_name_server_takes_deflated_and_split_registrations(
    java_version: str, tmp_path: Path
) -> None:
    forms = (
        {"compressedRegister": "true"},
        {"enableSplitRegistration": "true", "splitRegistrationSize": 2},
    )
    with processes.java_name_server(java_version, tmp_path / "namesrv") as namesrv:
        for number, settings in enumerate(forms):
            name = f"broker-{number}"
            with processes.our_broker(tmp_path / name, name, namesrv, **settings) as (address, _):
                processes.wait_registered(namesrv, name)
                made, routes = processes.java_mqadmin(
                    java_version,
                    namesrv,
                    [
                        ["updateTopic", "-b", address, "-t", f"Topic-{number}", "-r", 3, "-w", 3],
                        ["topicRoute", "-t", f"Topic-{number}"],
                    ],
                )
                assert "create topic to" in made
                assert f'"{address}"' in routes
                # TBW102 is in no piece with the new topic: both came.
                (inherited,) = processes.java_mqadmin(
                    java_version, namesrv, [["topicRoute", "-t", "TBW102"]]
                )
                assert name in inherited
