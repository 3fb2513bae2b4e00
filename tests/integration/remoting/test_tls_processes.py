"""TLS of whole programs: mqadmin makes and checks certificates, servers refuse bad ones with one
line, a cluster runs encrypted.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import tls_files
import trio
from mqadmin_calls import failed, mqadmin
from processes import free_port

from triomq import ClientSettings, Producer, ProducerSettings, Tls
from triomq.client.core.errors import NoNameServer, SettingsError
from triomq.testing import local_cluster


async def test_init_writes_files_that_check_accepts(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    made = (
        await mqadmin(
            "tls",
            "init",
            "--dir",
            folder,
            "--hosts",
            "localhost,127.0.0.1,broker.example",
            "--json",
        )
    ).document
    assert made["hosts"] == ["localhost", "127.0.0.1", "broker.example"]
    assert made["newAuthority"] is True
    for secret in ("ca-key.pem", "server-key.pem", "client-key.pem"):
        assert stat.S_IMODE((folder / secret).stat().st_mode) == 0o600
        assert (folder / secret).read_text().startswith("-----BEGIN PRIVATE KEY-----"), "PKCS#8"
    checked = await mqadmin(
        "tlsCheck", "--tls", made["config"], "--hosts", "broker.example", "--json"
    )
    assert checked.document["ok"] is True
    assert {finding["level"] for finding in checked.document["findings"]} == {"ok"}
    assert {finding["subject"] for finding in checked.document["findings"]} == {
        "server",
        "client",
        "server trust",
        "client trust",
    }
    before = (folder / "ca.pem").read_bytes(), (folder / "server.pem").read_bytes()
    again = (
        await mqadmin(
            "tls-init", "--dir", folder, "--password", "open sesame", "--mutual", "--json"
        )
    ).document
    assert again["newAuthority"] is False
    assert (folder / "ca.pem").read_bytes() == before[0], "clients still trust it"
    assert (folder / "server.pem").read_bytes() != before[1]
    assert (
        (folder / "server-key.pem").read_text().startswith("-----BEGIN ENCRYPTED PRIVATE KEY-----")
    )
    assert stat.S_IMODE((folder / "tls.properties").stat().st_mode) == 0o600, (
        "it contains the password"
    )
    assert (await mqadmin("tls", "check", "--tls", again["config"])).code == 0


def damaged(folder: Path, damage: str) -> tuple[tls_files.Files, tuple[str, ...]]:
    """Yield damaged files, and the words that must name the damage."""
    now = datetime.now(UTC)
    match damage:
        case "expired":
            return tls_files.write(folder, days=1, now=now - timedelta(days=3)), (
                "expired on",
                "make a new certificate",
            )
        case "not yet":
            return tls_files.write(folder, now=now + timedelta(days=3)), (
                "valid only from",
                "check the clock",
            )
        case "mismatch":
            files = tls_files.write(folder)
            files.key.write_bytes(tls_files.write(folder / "other").key.read_bytes())
            return files, ("key.pem is not the private key of", "made together")
        case "encrypted":
            return tls_files.write(folder, password="secret"), (
                "the private key is encrypted",
                "set its password",
            )
        case "swapped":
            files = tls_files.write(folder)
            files.certificate.write_bytes(files.key.read_bytes())
            return files, ("holds a private key, not a certificate", "-----BEGIN CERTIFICATE-----")
        case "missing":
            files = tls_files.write(folder)
            files.key.unlink()
            return files, ("cannot be read (no such file or directory)", "name a PEM file")
        case "client's":
            return tls_files.write(folder, server=False), (
                "may not be used by a server",
                "make a new certificate",
            )
        case "chain":
            files = tls_files.write(folder)
            stranger = tls_files.write(folder / "other", issuer="Somebody else").ca.read_bytes()
            files.certificate.write_bytes(files.certificate.read_bytes() + stranger)
            return files, (
                "is not issued by CN=Somebody else",
                "put the server's certificate first",
            )
    raise AssertionError(damage)


DAMAGES = ["expired", "not yet", "mismatch", "encrypted", "swapped", "missing", "client's", "chain"]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_check_names_what_is_wrong(tmp_path: Path, damage: str) -> None:
    files, words = damaged(tmp_path / "tls", damage)
    config = tmp_path / "tls.properties"
    config.write_text(f"tls.server.certPath={files.certificate}\ntls.server.keyPath={files.key}\n")
    done = await mqadmin("tls", "check", "--tls", config)
    assert done.code == 1
    assert "error" in done.out
    for word in words:
        assert word in done.out


@pytest.mark.feature("151c")
@pytest.mark.parametrize(
    ("program", "damage"),
    [("namesrv", damage) for damage in DAMAGES] + [("broker", "expired"), ("broker", "mismatch")],
)
def test_a_server_does_not_start_with_bad_certificates(
    tmp_path: Path, program: str, damage: str
) -> None:
    files, words = damaged(tmp_path / "tls", damage)
    lines = [
        f"tls.server.certPath={files.certificate}",
        f"tls.server.keyPath={files.key}",
        f"listenPort={free_port()}",
        "bindAddress=127.0.0.1",
    ]
    if program == "broker":
        lines += [f"storePathRootDir={tmp_path / 'store'}", "brokerIP1=127.0.0.1"]
    done = run_server(program, tmp_path, lines)
    assert done.returncode == 2, "wrong configuration: the table in docs/operations.md"
    (line,) = done.stderr.strip().splitlines()
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["tls.server.mode=enforcing"], ("enforcing without a certificate", "mqadmin tls init")),
        (
            ["tls.server.mode=sometimes"],
            ("tls.server.mode=sometimes", "write DISABLED or PERMISSIVE or ENFORCING"),
        ),
        (["tls.server.certPath=x.pem"], ("belong together", "set both")),
        (
            [
                "tls.server.certPath=x",
                "tls.server.keyPath=y",
                "tls.server.need.client.auth=require",
            ],
            ("would accept any certificate", "tls.server.authClient=true"),
        ),
        (
            ["tls.config.file=/no/such/tls.properties"],
            ("cannot be read", "name an existing tls.properties"),
        ),
    ],
)
def test_contradictory_settings_end_the_start(
    tmp_path: Path, lines: list[str], words: tuple[str, ...]
) -> None:
    done = run_server("namesrv", tmp_path, lines)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    for word in words:
        assert word in line


def run_server(program: str, folder: Path, lines: list[str]) -> subprocess.CompletedProcess[str]:
    settings = [word for line in lines for word in ("-D", line)]
    command = [
        sys.executable,
        "-m",
        f"triomq.{program}",
        "--log-dir",
        str(folder / "logs"),
        *settings,
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "HOME": str(folder)},
    )


@pytest.mark.feature("151a")
async def test_a_cluster_in_this_loop_runs_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_cluster(tls=True, dir=tmp_path) as cluster:
        await cluster.create_topic("Secret")
        client = ClientSettings(tls=cluster.tls)
        async with Producer(
            cluster.namesrv_address, group="g", settings=ProducerSettings(client=client)
        ) as producer:
            assert (await producer.send("Secret", b"hello")).status.name == "STORED"
        with pytest.raises(NoNameServer, match="does it demand TLS"):
            async with Producer(cluster.namesrv_address, group="g"):
                pass
        config = tmp_path / "tls" / "tls.properties"
        fast = f"127.0.0.1:{cluster.brokers[0].port - 2}"
        assert (await mqadmin("tls", "check", "--tls", config, "--connect", fast)).code == 0, (
            "the fast port, too"
        )
        assert failed(
            await mqadmin("clusterList", "-n", cluster.namesrv_address), 6, "does it demand TLS"
        )
        assert (
            await mqadmin("clusterList", "-n", cluster.namesrv_address, "--tls", config)
        ).code == 0
        assert (
            await mqadmin(
                "sendMessage", "-t", "T", "-p", "x", "-n", cluster.namesrv_address, "--tls", config
            )
        ).code == 0
        monkeypatch.setenv("TRIOMQ_TLS", str(config))
        assert (await mqadmin("clusterList", "-n", cluster.namesrv_address)).code == 0
        shaken = (
            await mqadmin("tls", "check", "--connect", cluster.namesrv_address, "--json")
        ).document
        assert shaken["findings"][-1]["text"].startswith(
            f"{cluster.namesrv_address} speaks TLSv1.3 as localhost, 127.0.0.1, "
        )
        async with Producer(cluster.namesrv_address, group="g") as producer:
            await producer.send("Secret", b"from the environment")


@pytest.mark.feature("189a")
async def test_running_servers_pick_up_new_certificates(tmp_path: Path) -> None:
    async with local_cluster(tls=True, dir=tmp_path) as cluster:
        await cluster.create_topic("Lasting")
        config = tmp_path / "tls" / "tls.properties"
        client = ClientSettings(tls=cluster.tls)
        async with Producer(
            cluster.namesrv_address, group="g", settings=ProducerSettings(client=client)
        ) as producer:
            await producer.send("Lasting", b"before")
            assert (
                await mqadmin(
                    "tls", "init", "--dir", config.parent, "--hosts", "127.0.0.1,renewed.example"
                )
            ).code == 0
            for address in (cluster.namesrv_address, cluster.brokers[0].address):
                with trio.fail_after(30):
                    while True:
                        shaken = (
                            await mqadmin(
                                "tls", "check", "--tls", config, "--connect", address, "--json"
                            )
                        ).document
                        if "renewed.example" in shaken["findings"][-1]["text"]:
                            break
                        await trio.sleep(0.1)
            await producer.send("Lasting", b"after, on the connection of before")


async def test_tls_that_cannot_be_used_is_a_settings_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=r"no\.pem: cannot be read"):
        async with Producer(
            "127.0.0.1:1",
            group="g",
            settings=ProducerSettings(client=ClientSettings(tls=Tls(ca_file=tmp_path / "no.pem"))),
        ):
            pass
    assert failed(
        await mqadmin("clusterList", "-n", "127.0.0.1:1", "--tls", tmp_path / "none"),
        2,
        "cannot be read",
        "tls.properties",
    )
    monkeypatch.delenv("TRIOMQ_TLS", raising=False)
    assert failed(await mqadmin("tls", "check"), 2, "no tls.properties file")
    monkeypatch.setenv("TRIOMQ_TLS", str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="none: cannot be read"):
        async with Producer("127.0.0.1:1", group="g"):
            pass


@pytest.mark.feature("151a")
def test_mqlocal_runs_an_encrypted_cluster(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "triomq.local",
        "--port",
        "0",
        "--tls",
        "--json",
        "--dir",
        str(tmp_path),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert ready["tls"] == str(tmp_path / "tls" / "tls.properties")
            environment = {**os.environ, "TRIOMQ_TLS": ready["tls"]}
            listing = [
                sys.executable,
                "-m",
                "triomq.client.mqadmin.cli",
                "clusterList",
                "-n",
                ready["namesrvAddr"],
                "--json",
            ]
            done = subprocess.run(
                listing, env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stderr
            plain = subprocess.run(listing, capture_output=True, text=True, timeout=60, check=False)
            assert plain.returncode == 6
        finally:
            process.terminate()
        assert process.wait(30) == 0


def test_a_start_without_tls_loads_no_cryptography() -> None:
    """Trio itself imports ssl; the other modules of TLS are loaded only with TLS."""
    code = (
        "import sys, triomq.broker.serve, triomq.namesrv.serve, triomq.client.sdk.producer,"
        " triomq.client.admin.admin\nprint([name for name in sys.modules if"
        " name.startswith(('cryptography', 'triomq.remoting.tls.'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert sorted(json.loads(done.stdout.replace("'", '"'))) == [
        "triomq.remoting.tls.client",
        "triomq.remoting.tls.security_settings",
    ]


async def test_a_blocking_connection_without_tls_does_not_load_ssl() -> None:
    code = (
        "import sys, triomq.remoting.client.blocking, triomq.remoting.client.access; print('ssl' in"
        " sys.modules or 'trio' in sys.modules)"
    )
    done = await trio.run_process([sys.executable, "-c", code], capture_stdout=True)
    assert done.stdout.strip() == b"False"
