"""SQL92 filters: an expression becomes a function of a message's properties.

    wanted = compile_filter("Region = 'Hangzhou' AND price > 30")
    wanted({"Region": "Hangzhou", "price": "35"})   # True

The logic has three values; a missing property is null. A message is delivered only if the result is
true: not if it is null, nor if the evaluation fails (``'abc' > 3``). NOT binds tighter than ``=``.
Source: RocketMQ's filter module (SelectorParser.jj, expression/*), which the tests run beside this
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import islice

import attrs

from triomq.broker.filters.tokens import FilterInvalid, Token, tokens
from triomq.broker.filters.values import LONG, Incomparable, Int, Long, Value, compare, double

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]
DEPTH_MAX = 100
"""Nesting of parentheses, signs and NOTs; each level is a nested call of the evaluation."""
WORDS_MAX = 2000
"""Words of an expression; each costs half a KiB, and some tenths of a µs for each message read."""


@attrs.frozen(eq=False)
class Node:
    """A part of an expression: its evaluation, and what the compiler needs for its checks."""

    evaluate: Evaluate
    boolean: bool = False
    """Its value is true, false or null for any properties."""
    name: str | None = None
    """The name of a property that stands alone."""
    constant: bool = False
    value: Value = None
    depth: int = 1


@lru_cache(maxsize=64)
def compile_filter(expression: str) -> Callable[[Properties], bool]:
    """Return a function that tells whether a message with these properties matches.

    The function never raises. Raises: FilterInvalid, if the expression cannot be compiled.
    """
    try:
        evaluate = _Parser(expression).whole().evaluate
    except RecursionError:
        raise FilterInvalid("the expression nests too deeply") from None

    def wanted(properties: Properties) -> bool:
        try:
            return evaluate(properties) is True
        except (Incomparable, RecursionError):
            return False

    return wanted


class _Parser:
    """Recursive descent: one method for each level of binding, the loosest first."""

    def __init__(self, expression: str) -> None:
        self._words = list(islice(tokens(expression), WORDS_MAX + 1))
        if len(self._words) > WORDS_MAX:
            raise FilterInvalid(f"the expression has more than {WORDS_MAX} words")
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._as_boolean(self._or())
        if self._word.kind != "end":
            raise self._unexpected("an operator, AND, OR or the end")
        return node

    # Words

    @property
    def _word(self) -> Token:
        return self._words[self._next]

    def _take(self, *kinds: str) -> Token | None:
        """Consume the next words if they are of these kinds; return the last of them."""
        found = self._words[self._next : self._next + len(kinds)]
        if tuple(word.kind for word in found) != kinds:
            return None
        self._next += len(kinds)
        return found[-1]

    def _need(self, kind: str, what: str) -> Token:
        found = self._take(kind)
        if found is None:
            raise self._unexpected(what)
        return found

    def _unexpected(self, wanted: str) -> FilterInvalid:
        word = self._word
        found = (
            "the expression ends"
            if word.kind == "end"
            else f"{word.text!r} stands at character {word.at + 1}"
        )
        return FilterInvalid(f"{found} where {wanted} is expected")

    def _text(self) -> str:
        return self._need("text", "a text in single quotes").text[1:-1].replace("''", "'")

    # Levels

    def _or(self) -> Node:
        return self._chain(self._and, "OR", decides=True)

    def _and(self) -> Node:
        return self._chain(self._equality, "AND", decides=False)

    def _chain(self, part: Callable[[], Node], keyword: str, *, decides: bool) -> Node:
        node = part()
        if self._word.kind != keyword:
            return node
        parts = [self._as_boolean(node)]
        while self._take(keyword):
            parts.append(self._as_boolean(part()))
        evaluations = [part.evaluate for part in parts]

        def evaluate(properties: Properties) -> Value:
            unknown = False
            for each in evaluations:
                value = each(properties)
                if value is decides:
                    return decides
                unknown = unknown or value is None
            return None if unknown else not decides

        return self._boolean(evaluate, *parts)

    def _equality(self) -> Node:
        node = self._comparison()
        while True:
            if self._take("="):
                node = self._equal(node, self._comparison())
            elif self._take("<>"):
                node = self._not(self._equal(node, self._comparison()))
            elif self._take("IS", "NULL"):
                node = self._is_null(node)
            elif self._take("IS", "NOT", "NULL"):
                node = self._not(self._is_null(node))
            elif self._word.kind == "IS":
                self._next += 1
                raise self._unexpected("NULL or NOT NULL")
            else:
                return node

    def _comparison(self) -> Node:
        node = self._unary()
        while True:
            negative = self._word.kind == "NOT" and self._words[self._next + 1].kind in NEGATABLE
            if negative:
                self._next += 1
            kind = self._word.kind
            if kind in ORDERS:
                self._next += 1
                node = self._ordered(node, kind, self._unary())
            elif kind in SEARCHES:
                self._next += 1
                node = self._search(node, SEARCHES[kind], self._text(), negative)
            elif self._take("BETWEEN"):
                low = self._unary()
                self._need("AND", "AND of BETWEEN")
                node = self._between(node, low, self._unary(), negative)
            elif self._take("IN"):
                node = self._among(node, negative)
            else:
                return node

    def _unary(self) -> Node:
        if self._word.kind not in ("+", "-", "NOT"):
            return self._primary()
        sign = self._word.kind
        self._next += 1
        self._enter()
        node = self._unary()
        self._depth -= 1
        if sign == "NOT":
            return self._not(self._as_boolean(node))
        return self._negated(node) if sign == "-" else node

    def _primary(self) -> Node:
        word = self._word
        self._next += 1
        if word.kind == "name":
            return _property(word.text)
        if word.kind in CONSTANTS:
            return self._constant(CONSTANTS[word.kind], boolean=True)
        if word.kind == "text":
            self._next -= 1
            return self._constant(self._text())
        if word.kind == "whole":
            return self._constant(_whole(word))
        if word.kind == "float":
            return self._constant(_float(word))
        if word.kind == "(":
            self._enter()
            node = self._or()
            self._depth -= 1
            self._need(")", "a closing parenthesis")
            return node
        self._next -= 1
        raise self._unexpected("a property, a value or an opening parenthesis")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise FilterInvalid(
                f"parentheses, signs and NOTs are nested more than {DEPTH_MAX} levels deep"
            )

    # Nodes

    def _boolean(self, evaluate: Evaluate, *parts: Node) -> Node:
        depth = 1 + max(part.depth for part in parts)
        if depth > 4 * DEPTH_MAX:  # a = b = c … nests without parentheses
            raise FilterInvalid("the expression nests too deeply")
        return Node(evaluate, boolean=True, depth=depth)

    def _constant(self, value: Value, *, boolean: bool = False) -> Node:
        return Node(lambda properties: value, boolean=boolean, constant=True, value=value)

    def _as_boolean(self, node: Node) -> Node:
        """Return the node as a condition. A property alone is false, or null if it is missing."""
        if node.boolean:
            return node
        if node.name is None:
            raise FilterInvalid(
                "a part of the expression is neither true nor false: compare it with something"
            )
        evaluate = node.evaluate
        return self._boolean(
            lambda properties: None if evaluate(properties) is None else False, node
        )

    def _not(self, node: Node) -> Node:
        evaluate = node.evaluate

        def negated(properties: Properties) -> Value:
            value = evaluate(properties)
            return None if value is None else not value

        return self._boolean(negated, node)

    def _negated(self, node: Node) -> Node:
        evaluate = node.evaluate

        def negated(properties: Properties) -> Value:
            value = evaluate(properties)
            if isinstance(value, float):
                return -value
            if isinstance(value, Int | Long):
                return type(value)(-value)
            return None

        return Node(negated, depth=node.depth + 1)

    def _is_null(self, node: Node) -> Node:
        evaluate = node.evaluate
        return self._boolean(lambda properties: evaluate(properties) is None, node)

    def _equal(self, left: Node, right: Node) -> Node:
        if (left.constant and left.value is None) or (right.constant and right.value is None):
            raise FilterInvalid("NULL cannot be compared: write IS NULL or IS NOT NULL")
        if left.constant and right.constant and left.boolean and not right.boolean:
            raise FilterInvalid("TRUE and FALSE cannot be compared with another kind of value")
        first, second = left.evaluate, right.evaluate

        def equal(properties: Properties) -> Value:
            one, other = first(properties), second(properties)
            if one is None:
                return True if other is None else None
            return other is not None and compare(one, other) == 0

        return self._boolean(equal, left, right)

    def _ordered(self, left: Node, sign: str, right: Node) -> Node:
        _must_be_orderable(left)
        _must_be_orderable(right)
        first, second, holds = left.evaluate, right.evaluate, ORDERS[sign]

        def ordered(properties: Properties) -> Value:
            one = first(properties)
            if one is None:
                return None
            other = second(properties)
            if other is None:
                return None
            if isinstance(one, str) and isinstance(other, str):
                one, other = double(one), double(other)
            return holds(compare(one, other))

        return self._boolean(ordered, left, right)

    def _between(self, node: Node, low: Node, high: Node, negative: bool) -> Node:
        if negative:
            below = self._ordered(node, "<", low).evaluate
            above = self._ordered(node, ">", high).evaluate
        else:
            below = self._ordered(node, ">=", low).evaluate
            above = self._ordered(node, "<=", high).evaluate
            if low.constant and high.constant and compare(high.value, low.value) < 0:  # type: ignore[arg-type]
                raise FilterInvalid(
                    f"BETWEEN {low.value} AND {high.value} holds nothing: the lower value comes"
                    " first"
                )

        def between(properties: Properties) -> Value:
            first = below(properties)
            if first is negative:
                return negative
            second = above(properties)
            if second is negative:
                return negative
            return None if first is None or second is None else not negative

        return self._boolean(between, node, low, high)

    def _search(
        self, node: Node, found_in: Callable[[str, str], bool], text: str, negative: bool
    ) -> Node:
        evaluate = node.evaluate

        def search(properties: Properties) -> Value:
            if not text:
                return False  # as in Java, which does not evaluate the left side
            value = evaluate(properties)
            return isinstance(value, str) and found_in(value, text) is not negative

        return self._boolean(search, node)

    def _among(self, node: Node, negative: bool) -> Node:
        if node.name is None:
            raise FilterInvalid("only a property can stand before IN")
        self._need("(", "a list in parentheses")
        texts = {self._text()}
        while self._take(","):
            texts.add(self._text())
        self._need(")", "a comma or a closing parenthesis")
        evaluate = node.evaluate

        def among(properties: Properties) -> Value:
            value = evaluate(properties)
            return None if value is None else (value in texts) is not negative

        return self._boolean(among, node)


def _property(name: str) -> Node:
    return Node(lambda properties: properties.get(name), name=name)


CONSTANTS: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}
ORDERS: dict[str, Callable[[int], bool]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}
SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda value, text: text in value,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
NEGATABLE = (*SEARCHES, "BETWEEN", "IN")
"""The operators that a NOT may precede."""


def _must_be_orderable(node: Node) -> None:
    if node.boolean or (node.constant and not isinstance(node.value, Int | Long | float)):
        raise FilterInvalid(
            "only properties and numbers can be compared with <, <=, >, >= and BETWEEN"
        )


def _whole(word: Token) -> Value:
    number = int(word.text.rstrip("lL")) if len(word.text) <= 20 else LONG.stop
    if number not in LONG:
        raise FilterInvalid(f"{word.text} does not fit 64 bits")
    return Int(number) if number < 2**31 else Long(number)


def _float(word: Token) -> Value:
    number = float(word.text)
    if math.isinf(number) or number == 0.0:  # Java compares with its smallest positive double
        raise FilterInvalid(
            f"{word.text} is not between {5e-324} and {1.7976931348623157e308}: write 0 for zero"
        )
    return number
