"""Pipelines: one file that becomes Spark queries from topics to tables.

The command ``mqpipeline`` does all of this without Python (docs/pipeline.md):

    mqpipeline init orders.toml --topic orders
    mqpipeline infer orders.toml
    mqpipeline run orders.toml

In a program, a pipeline runs in a session of your own:

    from triomq.pipeline import read_spec, run_until_stopped
    spec = read_spec("orders.toml")
    run_until_stopped(spark, spec)

``Spec`` and the classes of its sections are frozen: ``attrs.evolve`` makes a changed copy.
``decode``, ``apply_rules``, ``apply_joins`` and ``totals_of`` are the steps of a pipeline, from
frame to frame, for queries of your own. Names are loaded on first use; ``read_spec`` and
``check_spec`` need no Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triomq.client.pipeline.backfill import Backfill, run_backfill
    from triomq.client.pipeline.core.errors import (
        PipelineError,
        ReadRefused,
        SchemaError,
        SessionError,
        SpecError,
    )
    from triomq.client.pipeline.core.origin import DEAD_LETTER_COLUMNS, live_rows, with_origin
    from triomq.client.pipeline.core.spec import (
        DecodeSpec,
        JoinSpec,
        Rule,
        RunSpec,
        SourceSpec,
        Spec,
        TableSpec,
        WindowSpec,
    )
    from triomq.client.pipeline.dead_letters import DeadLetters
    from triomq.client.pipeline.decoders import Decoder, decode, open_decoder
    from triomq.client.pipeline.infer import infer
    from triomq.client.pipeline.joins import apply_joins
    from triomq.client.pipeline.replay import replay
    from triomq.client.pipeline.rules import apply_rules
    from triomq.client.pipeline.run import PipelineRun, run_until_stopped
    from triomq.client.pipeline.session import open_session
    from triomq.client.pipeline.session_check import check_in_session
    from triomq.client.pipeline.spec_check import check_spec
    from triomq.client.pipeline.spec_file import read_spec
    from triomq.client.pipeline.status import PipelineStatus, read_status
    from triomq.client.pipeline.tables.table import LakeTable
    from triomq.client.pipeline.upkeep import keep_up
    from triomq.client.pipeline.windows import totals_of

_HOMES = {
    "backfill": ("Backfill", "run_backfill"),
    "dead_letters": ("DeadLetters",),
    "decoders": ("Decoder", "decode", "open_decoder"),
    "core.errors": ("PipelineError", "ReadRefused", "SchemaError", "SessionError", "SpecError"),
    "infer": ("infer",),
    "joins": ("apply_joins",),
    "core.origin": ("DEAD_LETTER_COLUMNS", "live_rows", "with_origin"),
    "replay": ("replay",),
    "rules": ("apply_rules",),
    "run": ("PipelineRun", "run_until_stopped"),
    "session": ("open_session",),
    "session_check": ("check_in_session",),
    "core.spec": (
        *("DecodeSpec", "JoinSpec", "Rule", "RunSpec", "SourceSpec", "Spec", "TableSpec"),
        "WindowSpec",
    ),
    "spec_check": ("check_spec",),
    "spec_file": ("read_spec",),
    "status": ("PipelineStatus", "read_status"),
    "tables.table": ("LakeTable",),
    "upkeep": ("keep_up",),
    "windows": ("totals_of",),
}
"""module in ``triomq.client.pipeline`` → the public names that it has"""

__all__ = [
    "DEAD_LETTER_COLUMNS",
    "Backfill",
    "DeadLetters",
    "DecodeSpec",
    "Decoder",
    "JoinSpec",
    "LakeTable",
    "PipelineError",
    "PipelineRun",
    "PipelineStatus",
    "ReadRefused",
    "Rule",
    "RunSpec",
    "SchemaError",
    "SessionError",
    "SourceSpec",
    "Spec",
    "SpecError",
    "TableSpec",
    "WindowSpec",
    "apply_joins",
    "apply_rules",
    "check_in_session",
    "check_spec",
    "decode",
    "infer",
    "keep_up",
    "live_rows",
    "open_decoder",
    "open_session",
    "read_spec",
    "read_status",
    "replay",
    "run_backfill",
    "run_until_stopped",
    "totals_of",
    "with_origin",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"triomq.client.pipeline.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
