"""The console in Chromium: every page in both languages, without a violation of axe's rules of
accessibility, by keyboard, on a narrow screen; wrong passwords, and forms of another site.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import trio
from console_pages import PASSWORD, mqconsole
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from triomq.client.admin.admin import Admin
from triomq.client.console.pages import PAGES
from triomq.client.sdk.producer import Producer
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader
from triomq.remoting.protocol.headers.send import SendBackHeader

pytestmark = pytest.mark.compat

AXE = (
    Path(__file__).parents[3] / ".peers" / "axe-4.10.3" / "node_modules" / "axe-core" / "axe.min.js"
)
TOPIC, GROUP = "BrowserOrders", "browser-billing"
RUN_AXE = """
const done = arguments[arguments.length - 1];
const texts = one => one.id + ": " + one.nodes.map(node => node.html).join(" ");
axe.run(document, {resultTypes: ["violations"]}).then(
  found => done(found.violations.map(texts), error => done([String(error)])));
"""
DARK = ("/", "/brokers", f"/group?name={GROUP}", f"/dead-letters?group={GROUP}", "/configuration")
"""pages whose dark colours are checked, too; every check takes a second or two"""


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    driver = which("chromedriver")
    if which("chromium") is None or driver is None:
        pytest.skip("Chromium is not installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
    chrome.set_page_load_timeout(30)
    try:
        yield chrome
    finally:
        chrome.quit()


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: run `make peers`")
    return AXE.read_text()


async def fill(namesrv: str) -> None:
    """A topic with messages, and a group with a backlog and a dead letter."""
    async with Admin(namesrv) as admin, Producer(namesrv, group="browser-shop") as producer:
        await admin.create_topic(TOPIC, queues=1)
        await admin.update_group(GROUP, lambda config: config)
        for number in range(3):
            await producer.send(TOPIC, b'{"n": %d}' % number, tag="new", keys=[f"k{number}"])
        (broker,) = await admin.brokers()
        queue = MessageQueue(TOPIC, broker.name, 0)
        (first,) = await admin.read(queue, 0, count=1)
        back = SendBackHeader(first.log_offset, GROUP, -1, first.message_id, TOPIC)
        await admin.ask(broker.address, RequestCode.CONSUMER_SEND_MSG_BACK, back)
        commit = UpdateConsumerOffsetHeader(GROUP, TOPIC, 0, 1)
        await admin.ask(broker.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)


@pytest.fixture(scope="module")
def url(triomq_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("console")
    trio.run(fill, triomq_server)
    options = ("--allow-changes", "--audit", str(folder / "audit"), "--poll", "1")
    with mqconsole(triomq_server, folder, *options) as (address, _):
        yield address


def log_in(browser: webdriver.Chrome, url: str, password: str = PASSWORD) -> None:
    """By keyboard only."""
    browser.delete_all_cookies()
    browser.get(url + "/login")
    field = browser.find_element(By.NAME, "name")
    field.send_keys("admin", Keys.TAB)
    typed = browser.switch_to.active_element
    assert typed.get_attribute("name") == "password"
    typed.send_keys(password, Keys.ENTER)
    WebDriverWait(browser, 10).until(lambda _: not typed_is_there(typed))


def typed_is_there(element: Any) -> bool:
    try:
        return bool(element.is_enabled())
    except Exception:
        return False


def paths(browser: webdriver.Chrome, url: str) -> list[str]:
    """An address of each page."""
    place = f"topic={TOPIC}&broker=broker-a&queue=0&offset=0"
    preview = "cluster=DefaultCluster&preview=1&retryMaxTimes=2"
    found = [
        "/",
        "/brokers",
        "/topics?kind=all",
        f"/topic?name={TOPIC}",
        "/topics/create",
        "/groups?kind=all",
        f"/group?name={GROUP}&why=1",
        "/group/change",
        f"/group/change?name={GROUP}&{preview}&retryQueueNums=1",
        f"/group/change?name={GROUP}&{preview}&retryQueueNums=-1",
        f"/group/move?name={GROUP}&topic={TOPIC}&target=latest&by=0",
        f"/messages?topic={TOPIC}&by=time",
        f"/message?{place}",
        f"/dead-letters?group={GROUP}",
        "/producers",
        "/policies?user=nobody&action=Pub&resource=Topic:T",
        "/configuration",
        "/configuration/change?kind=broker&key=brokerPermission&value=4",
    ]
    browser.get(url + "/brokers")
    link = browser.find_element(By.CSS_SELECTOR, "tbody a").get_attribute("href")
    assert link is not None
    return [*found, link.removeprefix(url)]


def test_all_pages_are_visited(browser: webdriver.Chrome, url: str) -> None:
    log_in(browser, url)
    visited = {path.partition("?")[0] for path in paths(browser, url)}
    without_page = {"/preferences", "/dead-letters/export", "/group/member", "/login"}
    assert {page.path for page in PAGES if page.method == "GET"} - visited == without_page


@pytest.mark.feature(194)
@pytest.mark.parametrize(("language", "theme"), [("en", "light"), ("zh", "dark")])
def test_every_page(
    browser: webdriver.Chrome, url: str, axe: str, language: str, theme: str
) -> None:
    browser.set_window_size(1200, 900)
    log_in(browser, url)
    browser.get(f"{url}/preferences?language={language}&theme={theme}&next=/")
    browser.get_log("browser")
    problems: list[str] = []
    for path in paths(browser, url):
        browser.get(url + path)
        assert browser.find_elements(By.TAG_NAME, "h1"), path
        root = browser.find_element(By.TAG_NAME, "html")
        assert root.get_attribute("lang") == {"en": "en", "zh": "zh-CN"}[language]
        if theme == "light" or path in DARK or path.startswith("/configuration/change"):
            browser.execute_script(axe)
            problems += [f"{path}: {one}" for one in browser.execute_async_script(RUN_AXE)]
        messages = [entry["message"] for entry in browser.get_log("browser")]
        wrong_form = path.endswith("retryQueueNums=-1")
        assert wrong_form == any("status of 400" in one for one in messages), path
        problems += [f"{path}: {one}" for one in messages if not wrong_form]
    assert problems == []


def test_axe_finds_violations(browser: webdriver.Chrome, url: str, axe: str) -> None:
    log_in(browser, url)
    browser.execute_script(
        "document.querySelector('main').insertAdjacentHTML("
        "'beforeend', '<img src=\"/static/icon.svg\"><input name=\"x\">')"
    )
    browser.execute_script(axe)
    found = browser.execute_async_script(RUN_AXE)
    assert {one.partition(":")[0] for one in found} == {"image-alt", "label"}


def test_pages_fit_a_narrow_screen(browser: webdriver.Chrome, url: str) -> None:
    browser.set_window_size(360, 740)
    log_in(browser, url)
    for language in ("en", "zh"):
        browser.get(f"{url}/preferences?language={language}&next=/")
        for path in paths(browser, url):
            browser.get(url + path)
            width = browser.execute_script("return document.documentElement.scrollWidth")
            assert width <= 360, path
    browser.set_window_size(1200, 900)


def test_the_keyboard_leads_past_the_menu(browser: webdriver.Chrome, url: str) -> None:
    log_in(browser, url)
    browser.get(url + "/topics")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    skip = browser.switch_to.active_element
    assert skip.get_attribute("class") == "skip"
    assert skip.rect["x"] >= 0, "it can be seen while it has the focus"
    skip.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "main"


def test_live_parts_are_refreshed(browser: webdriver.Chrome, url: str) -> None:
    log_in(browser, url)
    browser.execute_script(
        "document.querySelector('#figures').dataset.old = 'yes'; window.kept = 1"
    )

    def exchanged(_: webdriver.Chrome) -> bool:
        # One script: an element that was found may be exchanged before it is read.
        return bool(
            browser.execute_script("return !('old' in document.querySelector('#figures').dataset)")
        )

    WebDriverWait(browser, 15).until(exchanged)
    assert browser.execute_script("return window.kept") == 1, "the page itself stayed"


def test_a_wrong_password_is_refused(browser: webdriver.Chrome, url: str) -> None:
    log_in(browser, url, "wrong password")
    assert "User or password is wrong." in browser.page_source
    browser.get(url + "/topics")
    assert browser.current_url.startswith(url + "/login")


class ForeignPage(http.server.BaseHTTPRequestHandler):
    """A page of another site that sends a form to the console at once."""

    def __init__(self, target: str, *arguments: Any) -> None:
        self.target = target
        super().__init__(*arguments)

    def do_GET(self) -> None:
        fields = {"name": "Forged", "cluster": "DefaultCluster", "queues": "1", "type": "NORMAL"}
        inputs = "".join(f'<input name="{key}" value="{value}">' for key, value in fields.items())
        form = f'<form method="post" action="{self.target}/topics/create">{inputs}</form>'
        page = f"<!doctype html>{form}<script>document.forms[0].submit()</script>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *arguments: object) -> None: ...  # noqa: A002


def test_a_form_of_another_site_changes_nothing(
    browser: webdriver.Chrome, url: str, triomq_server: str
) -> None:
    log_in(browser, url)
    handler: Callable[..., ForeignPage] = partial(ForeignPage, url)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            browser.get(f"http://127.0.0.1:{server.server_port}/")
            WebDriverWait(browser, 10).until(lambda _: browser.current_url.startswith(url))
            source = browser.page_source
            assert "another site" in source or "session is over" in source
        finally:
            server.shutdown()
            thread.join()

    async def topics() -> list[str]:
        async with Admin(triomq_server) as admin:
            return await admin.topics()

    assert "Forged" not in trio.run(topics)


def test_a_topic_is_made_in_the_browser(
    browser: webdriver.Chrome, url: str, triomq_server: str
) -> None:
    log_in(browser, url)
    browser.get(url + "/topics/create")
    browser.find_element(By.NAME, "name").send_keys("MadeInTheBrowser", Keys.ENTER)
    WebDriverWait(browser, 10).until(
        lambda _: "MadeInTheBrowser was created" in browser.page_source
    )
    area = browser.find_element(By.NAME, "body")
    area.send_keys("hello")
    area.submit()
    WebDriverWait(browser, 10).until(lambda _: "was sent to queue" in browser.page_source)
    assert browser.find_element(By.CSS_SELECTOR, "pre.body").text == "hello"
