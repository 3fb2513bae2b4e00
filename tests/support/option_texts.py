"""The texts below the fields of a class: what the documentation says of an option."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import Any

from triomq.client.spark.option_table import options_of


def meanings(*kinds: type[Any]) -> dict[str, str]:
    """Return option name → text, of classes that declare options."""
    return {
        options_of(kind)[field.target.id].name: " ".join(text.value.value.split())
        for kind in kinds
        for field, text in pairwise(ast.parse(inspect.getsource(kind)).body[0].body)  # type: ignore[attr-defined]
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and field.target.id in options_of(kind)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def table_cell(text: str) -> str:
    return text.replace("|", "\\|")
