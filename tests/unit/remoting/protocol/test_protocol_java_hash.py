"""The hashes of filters and indexes equal Java's, on every path."""

import tracemalloc

import pytest

from triomq.remoting.protocol.java_hash import concat_hash, hash_batch, java_hash, tags_code

VECTORS = {
    "TagA": 2598919,
    "TagB": 2598920,
    "": 0,
    "polygenelubricants": -2147483648,
    "中文": 646394,
    "😀": 1772899,
    "TopicTest": -1902610879,
}


def by_loop(text: str) -> int:
    """The definition: h = 31 h + unit, over UTF-16 units, as a signed 32-bit number."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for place in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[place : place + 2], "big")) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(("text", "value"), VECTORS.items())
def test_vectors_from_java(text: str, value: int) -> None:
    assert java_hash(text) == by_loop(text) == value


@pytest.mark.parametrize("length", [1, 7, 8, 9, 31, 32, 33, 64, 65, 127, 128, 129, 1000])
def test_every_length_has_the_same_value_on_its_path(length: int) -> None:
    for text in (
        "~" * length,
        "\0" + "a" * (length - 1),
        "中" * length,
        "\ud800" * length,
        "é" + "z" * (length - 1),
    ):
        assert java_hash(text) == by_loop(text)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 63, 64, 65, 130])
@pytest.mark.parametrize("prefix", ["", "topic#", "中#"])
def test_a_batch_equals_the_loop(count: int, prefix: str) -> None:
    for keys in (
        [f"{number:032X}" for number in range(count)],
        [f"key{number}" for number in range(count)],
        ["中"] * count,
        [""] * count,
        ["x" * 200] * count,
        [f"{number:03d}{'😀' if number == 1 else 'ab'}" for number in range(count)],
    ):
        assert hash_batch(prefix, keys) == [by_loop(prefix + key) for key in keys]


def test_parts_make_the_whole() -> None:
    for left, right in (("topic#", "key"), ("", "a"), ("a", ""), ("polygene", "lubricants")):
        assert concat_hash(java_hash(left), java_hash(right), len(right)) == java_hash(left + right)


def test_tags() -> None:
    assert tags_code(None) == tags_code("") == 0
    assert tags_code("TagA") == 2598919
    for length in (255, 256, 257, 300):
        assert [tags_code("é" * length) for _ in range(2)] == [java_hash("é" * length)] * 2


def test_long_tags_are_not_kept_in_memory() -> None:
    tags_code("x" * 4_000)
    tracemalloc.start()
    try:
        for number in range(30):
            tags_code(f"{number:04}" * 1_000)
        ours = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(True, __file__)]  # other threads allocate, too
        )
    finally:
        tracemalloc.stop()
    assert sum(trace.size for trace in ours.traces) < 60_000
