"""What the broker reads out of a message's properties text, and what it takes out of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triomq.broker.processors import properties as props
from triomq.remoting.protocol.message import parse_properties, properties_text

VALUES = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=("Cs",)), min_size=1, max_size=12)
NAMES = st.sampled_from([*sorted(props.USUAL), *props.OWN, *props.TIMER_NAMES, "DELAY", "TRAN_MSG", "POP_CK", "MY_KEYS", "KEYSX", "u", "ä"])


@given(st.dictionaries(NAMES, VALUES), st.booleans())
def test_known_properties_are_those_that_a_parser_finds(properties: dict[str, str], ended: bool) -> None:
    text = properties_text(properties)
    if not ended:
        text = text.removesuffix("\x02")
    wanted = {*props.USUAL, *props.OWN, *props.TIMER_NAMES, "DELAY", "TRAN_MSG", "POP_CK"}
    assert props.known_properties(text) == {name: value for name, value in properties.items() if name in wanted}


@given(st.dictionaries(NAMES, VALUES), st.sets(NAMES))
def test_properties_are_taken_out_and_the_rest_stays_in_order(properties: dict[str, str], dropped: set[str]) -> None:
    text = props.without_properties(properties_text(properties).removesuffix("\x02"), dropped)
    kept = {name: value for name, value in properties.items() if name not in dropped}
    assert list(parse_properties(text).items()) == list(kept.items())
    assert text == properties_text(kept)


@given(st.lists(st.dictionaries(NAMES, VALUES), max_size=6), st.booleans())
def test_one_search_finds_the_unusual_among_many(many: list[dict[str, str]], ended: bool) -> None:
    texts = [properties_text(properties) for properties in many]
    if not ended:
        texts = [text.removesuffix("\x02") for text in texts]
    found = set(props.unusual_texts(texts))
    for index, text in enumerate(texts):
        if not props.USUAL.issuperset(props.known_properties(text)):
            assert index in found, "more may be found, but never less"
        elif index in found:
            assert any(name.startswith(("DELAY", "TIMER_DEL", "TRAN_MSG", "POP_CK", *props.OWN)) for name in many[index])


@given(st.dictionaries(NAMES, VALUES), st.booleans())
def test_one_value(properties: dict[str, str], ended: bool) -> None:
    text = properties_text(properties)
    if not ended:
        text = text.removesuffix("\x02")
    for name in ("KEYS", "TAGS", "DELAY", "u"):
        assert props.property_value(text, name + "\x01") == properties.get(name)


def test_names_inside_values_and_longer_names_do_not_count() -> None:
    text = "a\x01UNIQ_KEY\x02XTAGS\x01no\x02TAGSX\x01no\x02note\x01DELAY 3\x02"
    assert props.known_properties(text) == {}
    assert props.known_properties("") == {}
    assert props.known_properties("UNIQ_KEY\x01\x02TAGS\x01t") == {"UNIQ_KEY": "", "TAGS": "t"}
