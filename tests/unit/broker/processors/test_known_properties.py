"""The properties that the broker reads in a message's text, and its changes to the text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triomq.broker.processors.send import known_properties as props
from triomq.remoting.protocol.message_properties import parse_properties, properties_text
from triomq.remoting.protocol.message_properties import property_value as encoded_value

VALUES = st.text(
    st.characters(blacklist_characters="\x01\x02", blacklist_categories=("Cs",)),
    min_size=1,
    max_size=12,
)
NAMES = st.sampled_from(
    [
        *sorted(props.USUAL),
        *props.OWN,
        *props.TIMER_NAMES,
        "DELAY",
        "TRAN_MSG",
        "POP_CK",
        "MY_KEYS",
        "KEYSX",
        "u",
        "ä",
    ]
)


@given(st.dictionaries(NAMES, VALUES), st.booleans())
def test_known_properties_are_those_that_a_parser_finds(
    properties: dict[str, str], ended: bool
) -> None:
    text = properties_text(properties)
    if not ended:
        text = text.removesuffix("\x02")
    wanted = {*props.USUAL, *props.OWN, *props.TIMER_NAMES, "DELAY", "TRAN_MSG", "POP_CK"}
    assert props.known_properties(text) == {
        name: value for name, value in properties.items() if name in wanted
    }


@given(st.dictionaries(NAMES, VALUES), st.sets(NAMES))
def test_properties_are_taken_out_and_the_rest_stays_in_order(
    properties: dict[str, str], dropped: set[str]
) -> None:
    text = props.rewritten(properties_text(properties).removesuffix("\x02"), dropped, {"new": "1"})
    kept = {name: value for name, value in properties.items() if name not in dropped}
    assert list(parse_properties(text).items()) == [*kept.items(), ("new", "1")]
    assert text == properties_text({**kept, "new": "1"})


@given(st.lists(st.dictionaries(NAMES, VALUES), max_size=6), st.booleans())
def test_one_search_finds_the_unusual_among_many(many: list[dict[str, str]], ended: bool) -> None:
    texts = [properties_text(properties) for properties in many]
    if not ended:
        texts = [text.removesuffix("\x02") for text in texts]
    found = props.unusual_texts(texts)
    assert all(known == props.known_properties(texts[index]) for index, known in found.items())
    for index, text in enumerate(texts):
        if not props.USUAL.issuperset(props.known_properties(text)):
            assert index in found, "more may be found, but never less"
        elif index in found:
            assert any(
                name.startswith(("DELAY", "TIMER_DEL", "TRAN_MSG", "POP_CK", *props.OWN))
                for name in many[index]
            )


@given(st.dictionaries(NAMES, VALUES), st.booleans())
def test_the_indexed_values(properties: dict[str, str], ended: bool) -> None:
    text = properties_text(properties)
    if not ended:
        text = text.removesuffix("\x02")
    unusual, values = props.read_texts([text, "TAGS\x01t\x02"])
    assert values == [
        (properties.get("TAGS"), properties.get("UNIQ_KEY"), properties.get("KEYS")),
        ("t", None, None),
    ]
    assert unusual == props.unusual_texts([text])
    assert props.waits(text) == (properties.get("WAIT") != "false")


@given(
    st.lists(
        st.tuples(
            NAMES, st.one_of(st.just(""), VALUES, st.builds("{}\x01{}".format, NAMES, VALUES))
        ),
        max_size=8,
    ),
    st.booleans(),
)
def test_of_two_equal_names_the_last_counts_as_for_every_parser(
    pairs: list[tuple[str, str]], ended: bool
) -> None:
    """Also with values that look like properties, and with empty values, which are ignored."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in pairs])
    if not ended:
        text = text.removesuffix("\x02")
    parsed = parse_properties(text)
    _, values = props.read_texts([text])
    assert values == [(parsed.get("TAGS"), parsed.get("UNIQ_KEY"), parsed.get("KEYS"))]
    assert props.waits(text) == (parsed.get("WAIT") != "false")
    for name in ("KEYS", "TAGS", "DELAY", "UNIQ_KEY", "u"):
        assert encoded_value(text.encode(), name.encode()) == (
            parsed[name].encode() if name in parsed else None
        )
    known = props.known_properties(text)
    assert known == {name: value for name, value in parsed.items() if name in known}
    assert {"KEYS", "TAGS", "DELAY", "UNIQ_KEY"} & parsed.keys() <= known.keys()


def test_names_inside_values_and_longer_names_do_not_count() -> None:
    text = "a\x01UNIQ_KEY\x02XTAGS\x01no\x02TAGSX\x01no\x02note\x01DELAY 3\x02"
    assert props.known_properties(text) == {}
    assert props.known_properties("") == {}
    assert props.known_properties("UNIQ_KEY\x01\x02TAGS\x01t") == {"TAGS": "t"}
