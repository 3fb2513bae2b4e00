"""Text of a peer reaches a log without control characters."""

import logging
import sys

import pytest

from triomq.remoting.core.printable import PrintableFormatter, printable
from triomq.remoting.core.process import set_up_logging

HOSTILE = "a\r\nERROR forged\x1b[2J\x07\x9b31m\u202eb\u2028c\ud800"


def unprintable(text):
    return [character for character in text if not character.isprintable()]


def test_each_control_character_becomes_an_escape():
    assert printable(HOSTILE) == r"a\r\nERROR forged\x1b[2J\x07\x9b31m\u202eb\u2028c\ud800"
    assert printable("Größe 主题") == "Größe 主题"


def test_a_record_with_text_of_a_peer_is_one_line():
    record = logging.LogRecord("n", logging.WARNING, "f", 1, "broker %s left", (HOSTILE,), None)
    assert unprintable(PrintableFormatter("%(levelname)s %(message)s").format(record)) == []


def test_a_traceback_keeps_its_lines_and_nothing_else():
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    text = PrintableFormatter("%(message)s").format(record)
    assert text.count("\n") > 2
    assert unprintable(text.replace("\n", "")) == []


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_log_file_of_a_process_has_one_line_for_each_record(tmp_path, root_logger):
    set_up_logging("program", directory=tmp_path)
    logging.getLogger("triomq.test").warning("broker %s left", HOSTILE)
    lines = (tmp_path / "program.log").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1
    assert unprintable(lines[0]) == []
