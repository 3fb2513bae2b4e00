"""Both languages have the same texts, pages use all of them, and templates hold no text of their
own.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest

from triomq.client import console
from triomq.client.console.core.catalogue import LANGUAGES, preferred_language, texts_of
from triomq.client.console.core.rendering import make_templates

FOLDER = Path(console.__file__).parent
TEMPLATES = sorted((FOLDER / "templates").glob("*.html"))
SOURCES = sorted(FOLDER.rglob("*.py"))
JINJA = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
SPOKEN = {"alt", "aria-label", "content", "placeholder", "title", "value"}
"""attributes whose text people see or hear"""
PLAIN = {"width=device-width, initial-scale=1", "latin"}


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def differences(one: Mapping[str, str], two: Mapping[str, str]) -> list[str]:
    return sorted(one.keys() ^ two.keys()) + [
        key
        for key in one.keys() & two.keys()
        if placeholders(one[key]) != placeholders(two[key]) or not two[key].strip()
    ]


def test_both_languages_have_all_texts() -> None:
    assert differences(texts_of("en"), texts_of("zh")) == []
    assert differences({"a": "x {n}", "b": ""}, {"a": "y", "c": ""}) == ["b", "c", "a"]


def test_chinese_is_chinese() -> None:
    same = [key for key, text in texts_of("zh").items() if text == texts_of("en")[key]]
    assert same == ["form.json", "brokers.name", "messages.key"]


def test_every_text_is_used_and_every_used_text_exists() -> None:
    pages = "".join(path.read_text() for path in (*TEMPLATES, *SOURCES)).replace("'", '"')
    named = set(re.findall(r'"([a-z]+\.[a-z0-9_]+)"', pages))
    prefixes = set(re.findall(r'"([a-z]+\.(?:[a-z]+_)?)"', pages))
    texts = texts_of("en")
    unused = [key for key in texts if key not in named and not key.startswith(tuple(prefixes))]
    assert unused == []
    spoken = set(re.findall(r'\bt\("([a-z]+\.[a-z0-9_]+)"[,)]', pages))
    call = r'(?:text|done|refused)\((?:visit, \d+, )?"([a-z]+\.[a-z0-9_]+)"'
    spoken |= set(re.findall(call, pages))
    assert len(spoken) > 150
    assert spoken - texts.keys() == set()


class BareText(HTMLParser):
    """Collects text, and attributes that are read aloud, with letters in them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside.append(tag)
        for name, value in attrs:
            if name in SPOKEN and value and value not in PLAIN and tag not in ("option", "input"):
                self._look(value)

    def handle_data(self, data: str) -> None:
        self._look(data)

    def _look(self, text: str) -> None:
        if re.search(r"[^\W\d_]", text):
            self.found.append(text.strip())


def bare_texts(template: str) -> list[str]:
    parser = BareText()
    parser.feed(JINJA.sub("", template))
    return parser.found


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_hold_no_bare_text(path: Path) -> None:
    assert bare_texts(path.read_text()) == []


def test_bare_text_is_found() -> None:
    template = '<p title="Hint">{{ t("a.b") }} Lag</p><a aria-label="{{ x }}">{{ x }} →</a>'
    assert bare_texts(template) == ["Hint", "Lag"]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_have_no_inline_script_style_or_foreign_file(path: Path) -> None:
    """The policy of the pages would refuse them."""
    text = path.read_text()
    assert re.findall(r"\son\w+=|\sstyle=|<style|https?://|\|\s*safe", text) == []
    assert re.findall(r"<script(?! src=\"/static/)", text) == []
    for form in re.findall(r'<form[^>]*method="post".*?</form>', text, re.DOTALL):
        assert "m.token()" in form, form


def test_templates_compile() -> None:
    environment = make_templates()
    assert {name for name in environment.list_templates() if environment.get_template(name)} == {
        path.name for path in TEMPLATES
    }


@pytest.mark.parametrize(
    ("cookie", "accepted", "language"),
    [
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "fr, en-GB", "en"),
        (None, "", "en"),
        ("zh", "en", "zh"),
        ("xx", "zh", "zh"),
    ],
)
def test_choice_of_the_language(cookie: str | None, accepted: str, language: str) -> None:
    assert preferred_language(cookie, accepted) == language
    assert set(LANGUAGES) == {"en", "zh"}
