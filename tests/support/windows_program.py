"""What a program on Windows does with the SDK; tests/integration/client/test_without_posix.py."""

import asyncio
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest
import trio

import triomq
from triomq.client.mqadmin.cli import main as mqadmin


def import_all(package: str, leave_out: tuple[str, ...]) -> None:
    """Import every module below a package."""
    module = importlib.import_module(package)
    for found in pkgutil.iter_modules(module.__path__):
        name = f"{package}.{found.name}"
        if not found.name.startswith("__") and name not in leave_out:
            if found.ispkg:
                import_all(name, leave_out)
            else:
                importlib.import_module(name)


def blocking(namesrv: str) -> None:
    with triomq.sync.Producer(namesrv, group="p") as producer:
        producer.send("Orders", b"by threads", timeout=20)


async def under_asyncio(namesrv: str) -> None:
    async with triomq.aio.Producer(namesrv, group="p") as producer:
        await producer.send("Orders", b"by asyncio")


async def broadcasting(namesrv: str, folder: str) -> None:
    settings = triomq.ConsumerSettings(
        offset_dir=folder, client=triomq.ClientSettings(instance_name="member")
    )

    def member() -> triomq.PushConsumer:
        return triomq.PushConsumer(
            namesrv,
            group="caches",
            subscriptions="Orders",
            consume_from="first",
            broadcast=True,
            settings=settings,
        )

    got = []
    async with member() as consumer:
        async for message in consumer:
            got.append(message.body)
            await message.ack()
            if len(got) == 2:
                break
        with pytest.raises(triomq.SettingsError, match="another broadcasting consumer"):
            async with member():
                pass
    assert sorted(got) == [b"by asyncio", b"by threads"]


if __name__ == "__main__":
    address, home = sys.argv[1:]
    import_all("triomq.client", ("triomq.client.console", "triomq.client.proxy"))
    import_all("triomq.client.spark", ())
    importlib.import_module("triomq.spark")
    blocking(address)
    asyncio.run(under_asyncio(address))
    trio.run(broadcasting, address, home)
    assert list(Path(home).rglob("offsets.json"))
    sys.argv = ["mqadmin", "topic", "status", "-n", address, "-t", "Orders"]
    mqadmin()
