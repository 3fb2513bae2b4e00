"""``mqadmin security init``: servers with its files know their users and speak TLS only."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import trio
from brokers import SMALL_STORE
from mqadmin_calls import mqadmin

from triomq.broker.app import run_broker
from triomq.broker.options import load_broker_config
from triomq.client import ClientSettings, Credentials, Producer, ProducerSettings, Tls
from triomq.namesrv.app import NamesrvReady, run_namesrv
from triomq.namesrv.config import NAMESRV_KEYS, NamesrvConfig
from triomq.remoting.core.command_line import file_source
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import Source, load


def entries(**settings: object) -> list[Entry]:
    return [Entry(key, str(value)) for key, value in settings.items()]


def modes(files: dict[str, str]) -> set[int]:
    return {Path(path).stat().st_mode & 0o777 for what, path in files.items() if what != "tls"}


async def test_servers_with_these_files_know_their_users(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    made = await mqadmin("security", "init", "--dir", folder, "--hosts", "127.0.0.1", "--json")
    assert made.code == 0, made
    files: dict[str, Any] = made.document["files"]
    assert modes(files) == {0o600}
    again = await mqadmin("security", "init", "--dir", folder)
    assert again.code != 0
    assert "is there already" in again.err

    own = Source(
        "test",
        tuple(entries(bindAddress="127.0.0.1", listenPort=0, kvConfigPath=tmp_path / "kv.json")),
    )
    config = load(
        NamesrvConfig, [file_source(Path(files["name server"])), own], NAMESRV_KEYS
    ).config
    async with trio.open_nursery() as nursery:
        namesrv: NamesrvReady = await nursery.start(run_namesrv, config)
        address = f"127.0.0.1:{namesrv.port}"
        broker = load_broker_config(
            Path(files["broker"]),
            environment={},
            definitions=entries(
                brokerName="broker-a",
                brokerIP1="127.0.0.1",
                bindAddress="127.0.0.1",
                listenPort=0,
                grpcServerPort=0,
                namesrvAddr=address,
                storePathRootDir=tmp_path / "store",
                **SMALL_STORE,
            ),
        ).config
        await nursery.start(partial(run_broker, broker))
        me = ("--tls", files["tls"], "--credentials", files["administrator"], "-n", address)
        cluster = ("-c", "DefaultCluster")
        for words in (
            ("user", "create", *cluster, "-u", "shop", "-p", "secret"),
            (
                "acl",
                "create",
                *cluster,
                "-s",
                "User:shop",
                "-r",
                "Topic:orders",
                "-a",
                "Pub",
                "-d",
                "Allow",
            ),
            ("topic", "create", *cluster, "-t", "orders"),
        ):
            done = await mqadmin(*words, *me)
            assert done.code == 0, done
        # The command as it is printed, of another run: options stand behind the name of a command.
        other = tmp_path / "other"
        text = (await mqadmin("security", "init", "--dir", other, "--hosts", "127.0.0.1")).out
        printed = text.partition("You:")[2].splitlines()[0].replace(str(other), str(folder))
        words = printed.replace("COMMAND", "cluster list").split()[1:]
        done = await mqadmin(*words, "-n", address)
        assert (done.code, "broker-a" in done.out) == (0, True), done
        settings = ProducerSettings(
            client=ClientSettings(
                tls=Tls.from_file(Path(files["tls"])),
                credentials=Credentials(access_key="shop", secret_key="secret"),
            )
        )
        async with Producer(address, group="shop", settings=settings) as producer:
            await producer.send("orders", b"x")
        nursery.cancel_scope.cancel()
