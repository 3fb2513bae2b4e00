"""Pictures of the console's pages, from a cluster that works: ``make console-pictures``.

    python tests/console_pictures.py                 those of docs/console
    python tests/console_pictures.py --all FOLDER    to look at: every page, 360, 900 and 1440
                                                     pixels wide, light and dark, both languages

Two brokers, a shop that sends orders, a group that keeps up, one that is slow, and one whose
handler fails, so that it has dead letters with their reasons. Needs Chromium: apt-get install
chromium chromium-driver.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from shutil import which

import trio
from selenium import webdriver
from selenium.webdriver.common.by import By

sys.path.insert(0, str(Path(__file__).parent / "support"))

from console_pages import PASSWORD, mqconsole

from triomq import ConsumerSettings, Producer, PushConsumer, ReceivedMessage
from triomq.testing import local_cluster

PICTURES = Path(__file__).parent.parent / "docs" / "console"
WARM_UP_SECONDS = 45.0
WIDTHS = (360, 900, 1440)
HEIGHT_MAX = 900
DOCUMENTED = {
    "overview": "/",
    "brokers": "/brokers",
    "broker": "/broker?address={broker}",
    "topics": "/topics",
    "topic": "/topic?name=orders",
    "groups": "/groups?sort=-lag",
    "group": "/group?name=billing&why=1",
    "group-move": "/group/move?name=billing&topic=orders&target=latest&by=0",
    "messages": "/messages?topic=orders&by=time",
    "message": "/message?topic=orders&broker=broker-a&queue=0&offset=0",
    "dead-letters": "/dead-letters?group=invoices",
    "group-change": "/group/change?name=billing&cluster=DefaultCluster&preview=1&consumeEnable=true"
    "&consumeBroadcastEnable=true&consumeMessageOrderly=false&retryMaxTimes=5&retryQueueNums=1",
    "producers": "/producers",
    "configuration": "/configuration",
    "configuration-change": "/configuration/change?kind=broker&key=brokerPermission&value=4",
    "login": "/login",
}
"""file → page of docs/console; those of a member, and of narrow and Chinese pages, come besides"""


async def work(namesrv: str) -> None:
    """Send orders and handle them until cancelled."""

    async def keep_up(_: ReceivedMessage) -> None:
        await trio.sleep(0.001)

    async def be_slow(_: ReceivedMessage) -> None:
        await trio.sleep(0.4)

    async def fail(message: ReceivedMessage) -> None:
        if message.tag == "foreign":
            raise ValueError("currency ABC is not known")

    settings = ConsumerSettings(max_reconsume_times=0)
    async with (
        Producer(namesrv, group="shop") as shop,
        PushConsumer(namesrv, group="ledger", subscriptions="orders", handler=keep_up),
        PushConsumer(
            namesrv, group="billing", subscriptions="orders", handler=be_slow, concurrency=8
        ),
        PushConsumer(
            namesrv, group="invoices", subscriptions="orders", handler=fail, settings=settings
        ),
    ):
        number = 0
        while True:
            number += 1
            tag = "foreign" if number % 40 == 0 else "home"
            body = f'{{"order": {number}, "amount": "{number % 90 + 10}.00"}}'.encode()
            await shop.send("orders", body, tag=tag, keys=[f"order-{number}"])
            await trio.sleep(0.02 + 0.015 * (number // 150 % 3))


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    driver = which("chromedriver")
    if driver is None or which("chromium") is None:
        raise SystemExit("Chromium is not installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()


def take(browser: webdriver.Chrome, address: str, width: int, file: Path, height: int) -> None:
    """Save a page as it is at this width, at most ``height`` pixels of it."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.get(address)
    page = browser.execute_script("return document.body.getBoundingClientRect().height")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {
            "width": width,
            "height": min(height, round(page)),
            "deviceScaleFactor": 1,
            "mobile": False,
        },
    )
    browser.save_screenshot(str(file))


def log_in(browser: webdriver.Chrome, url: str) -> None:
    browser.get(url + "/login")
    browser.find_element(By.NAME, "name").send_keys("admin")
    browser.find_element(By.NAME, "password").send_keys(PASSWORD)
    browser.find_element(By.CSS_SELECTOR, "main button").click()


def choose(browser: webdriver.Chrome, url: str, language: str, theme: str) -> None:
    browser.get(f"{url}/preferences?language={language}&theme={theme}&next=/login")


def take_all(url: str, broker: str, folder: Path | None) -> None:
    pages = {name: path.format(broker=broker) for name, path in DOCUMENTED.items()}
    with chromium() as browser:
        if folder is None:
            choose(browser, url, "en", "light")
            take(browser, url + "/login", 960, PICTURES / "login.png", HEIGHT_MAX)
            log_in(browser, url)
            for name, path in pages.items():
                if name != "login":
                    take(browser, url + path, 960, PICTURES / f"{name}.png", HEIGHT_MAX)
            browser.get(url + "/group?name=billing")
            member = browser.find_element(By.CSS_SELECTOR, 'a[href*="stacks=1"]')
            address = member.get_attribute("href") or ""
            take(browser, address, 960, PICTURES / "member.png", HEIGHT_MAX)
            take(browser, url + "/groups", 360, PICTURES / "groups-narrow.png", HEIGHT_MAX)
            choose(browser, url, "zh", "dark")
            take(browser, url + "/", 960, PICTURES / "overview-chinese-dark.png", HEIGHT_MAX)
            return
        folder.mkdir(parents=True, exist_ok=True)
        for language, theme in product(("en", "zh"), ("light", "dark")):
            choose(browser, url, language, theme)
            take(browser, url + "/login", 360, folder / f"login-{language}-{theme}.png", 4000)
            log_in(browser, url)
            for (name, path), width in product(pages.items(), WIDTHS):
                file = folder / f"{name}-{width}-{language}-{theme}.png"
                take(browser, url + path, width, file, 4000)
            browser.delete_all_cookies()


async def main(folder: Path | None) -> None:
    async with local_cluster(brokers=2, settings={"enablePropertyFilter": "true"}) as cluster:
        with tempfile.TemporaryDirectory() as place:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, cluster.namesrv_address)
                await trio.sleep(1)
                options = ("--allow-changes", "--audit", f"{place}/audit", "--poll", "1")
                with mqconsole(cluster.namesrv_address, Path(place), *options) as (url, _):
                    await trio.sleep(WARM_UP_SECONDS)
                    address = cluster.brokers[0].address
                    await trio.to_thread.run_sync(partial(take_all, url, address, folder))
                nursery.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every page in every form")
    trio.run(main, parser.parse_args().all)
