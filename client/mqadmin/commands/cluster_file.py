"""Commands about cluster files: clusterExport, clusterDiff, clusterApply, clusterImport."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.answers import Answers
from triomq.client.admin.arguments import Option, UsageError, Values, filled
from triomq.client.admin.cluster_files.applying import Applier, StepOutcome
from triomq.client.admin.cluster_files.difference import (
    SIGNS,
    ClusterPlan,
    difference_lines,
    plan_of,
    summary,
)
from triomq.client.admin.cluster_files.file_text import read_tree, text_of, write_text
from triomq.client.admin.cluster_files.items import FILE_BYTES_MAX, ClusterDocument, ItemKind
from triomq.client.admin.cluster_files.offset_steps import groups_with_members, within_queues
from triomq.client.admin.cluster_files.reading import document_of, root_of
from triomq.client.admin.cluster_files.snapshot import (
    BrokerItems,
    exported,
    present_of,
    read_cluster,
)
from triomq.client.admin.documents import count_of, fewer_queues
from triomq.client.admin.errors import (
    BrokerMissing,
    ClusterNotFound,
    ExportIncomplete,
    GroupsOnline,
)
from triomq.client.core.errors import SettingsError
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.result import Result, table_of

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


# --- clusterExport


async def export(admin: Admin, options: Values) -> Result:
    file, partial_too = options.maybe_text("output"), options.flag("partial")
    if partial_too and file is None:
        raise UsageError("--partial needs -o/--output: stdout has the names of missing brokers")
    cluster = await chosen_cluster(admin, options.maybe_text("clusterName"))
    answers = await read_cluster(admin, cluster, offsets=options.flag("offsets"))
    answers.some()
    if answers.failures and not partial_too:
        raise ExportIncomplete(answers.reasons(), answers.asked)
    document = exported(cluster, answers, offsets=options.flag("offsets"))
    root = root_of(document)
    users = document.count(ItemKind.USERS)
    notes = [f"passwords of {users} users are not in the file: see passwordEnv"] if users else []
    if file is None:
        text = "" if options.flag("json") or options.flag("csv") else text_of(root, None)
        return Result(
            # As a program reads it back: keys of JSON are texts.
            document=json.loads(json.dumps(root)),
            blocks=[text.rstrip("\n")],
            notes=notes,
        )
    text = text_of(root, file)
    if len(text.encode()) > FILE_BYTES_MAX:
        notes.append(
            f"{file} is larger than {FILE_BYTES_MAX} bytes, which the other commands read: export"
            " without --offsets, or divide it"
        )
    write_text(Path(file), text)
    counts = {kind.value: document.count(kind) for kind in ItemKind}
    line = ", ".join(
        count_of(count, name.removesuffix("s"))
        for name, count in counts.items()
        if count is not None
    )
    return Result(
        document={"file": file, "cluster": cluster, "brokers": list(document.brokers), **counts},
        blocks=[f"{file}: {line} of cluster {cluster}"],
        notes=notes,
        failures=answers.reasons(),
        asked=answers.asked,
    )


async def chosen_cluster(admin: Admin, wanted: str | None, from_file: str | None = None) -> str:
    """Return the wanted cluster, otherwise that of the file, otherwise the only one.

    Raises: ClusterNotFound, UsageError if there are several.
    """
    known = sorted((await admin.cluster()).cluster_addr_table)
    name = wanted or from_file
    if name is not None:
        if name not in known:
            raise ClusterNotFound(name, known)
        return name
    if len(known) != 1:
        raise UsageError(
            f"there are {len(known)} clusters ({', '.join(known)}): choose one with"
            " -c/--clusterName"
        )
    return known[0]


# --- clusterDiff, clusterApply, clusterImport


@attrs.frozen(kw_only=True)
class Comparison:
    """A file beside the cluster that it is for."""

    cluster: str
    document: ClusterDocument
    answers: Answers[BrokerItems]
    plan: ClusterPlan
    failures: Mapping[str, str]
    """brokers that did not answer, or cannot be as the file says → reason"""
    notes: list[str]

    @property
    def asked(self) -> int:
        return self.answers.asked


async def compare(
    admin: Admin, options: Values, *, offsets: bool, prune: bool = False
) -> Comparison:
    """Read the file and the cluster, and compare them. Raises: SettingsError, TrioMQError."""
    document = document_of(read_tree(Path(options.text("file"))))
    document = document.renamed(dict(options.value("rename") or ()))
    wanted = options.maybe_text("clusterName")
    cluster = await chosen_cluster(admin, wanted, document.cluster)
    known = {broker.name for broker in await admin.brokers(cluster)}
    for name, subject in document.special_brokers().items():
        offsets_only = subject.startswith(ItemKind.OFFSETS.word)
        if name not in known and (offsets or not offsets_only):
            raise BrokerMissing(
                name,
                known,
                f"in cluster {cluster!r}, and the file names it ({subject}): give"
                f" --rename {name}=NEW or change the file",
            )
    away = dict.fromkeys(
        sorted({*document.brokers} - known - {*document.missing}),
        f"the file names it, and it is not registered in cluster {cluster!r}: start it, give"
        " --rename, or change the list `brokers` of the file",
    )
    if not offsets:
        document = document.without(ItemKind.OFFSETS)
    answers = await read_cluster(admin, cluster, offsets=offsets, but=document.missing)
    answers.some()
    plan = plan_of(document, present_of(answers), prune=prune)
    skipped = ", ".join(sorted(known.intersection(document.missing)))
    notes = [f"{skipped} did not answer the export, and is not compared"] if skipped else []
    for step in plan.steps:
        if step.kind is ItemKind.TOPICS and step.before and step.after:
            old, new = step.before["readQueueNums"], step.after["readQueueNums"]
            notes += [fewer_queues(step.name, step.place, old, new)] if old > new else []
    return Comparison(
        cluster=cluster,
        document=document,
        answers=answers,
        plan=plan,
        failures={**away, **answers.reasons(), **plan.impossible},
        notes=notes,
    )


def unnamed_line(plan: ClusterPlan) -> list[str]:
    """Return a line about what the file does not name."""
    return (
        [f"{count_of(plan.unnamed, 'item')} that the file does not name stay; --prune deletes them"]
        if plan.unnamed
        else []
    )


async def diff(admin: Admin, options: Values) -> Result:
    found = await compare(
        admin, options, offsets=options.flag("offsets"), prune=options.flag("prune")
    )
    steps = [step for step in found.plan.steps if step.kind is not ItemKind.OFFSETS]
    moves = [step for step in found.plan.steps if step.kind is ItemKind.OFFSETS]
    moves, notes = await within_queues(admin, moves, found.answers.values)
    found.notes.extend(notes)
    steps += moves
    return Result(
        document={
            "cluster": found.cluster,
            "same": not steps and not found.failures,
            "changes": [step.document for step in steps],
            "unnamed": found.plan.unnamed,
        },
        blocks=[
            *difference_lines(steps),
            summary(steps) if steps else f"cluster {found.cluster} is as the file says",
            *unnamed_line(found.plan),
        ],
        failures=found.failures,
        asked=found.asked,
        notes=found.notes,
        bad_news=bool(steps),
    )


async def apply(admin: Admin, options: Values) -> Result:
    found = await compare(admin, options, offsets=False, prune=options.flag("prune"))
    applier = Applier(admin, found.cluster, found.answers.values)
    return applied(found, await done_steps(applier, found))


async def import_file(admin: Admin, options: Values) -> Result:
    found = await compare(admin, options, offsets=True)
    if ItemKind.OFFSETS not in found.document.sections:
        raise SettingsError(
            f"{options.text('file')} has no offsets: export it with --offsets, or use `mqadmin"
            " cluster apply`"
        )
    steps = [step for step in found.plan.steps if step.kind is ItemKind.OFFSETS]
    brokers = found.answers.values
    if steps and not options.flag("force"):
        members = await groups_with_members(admin, steps, brokers)
        if members:
            raise GroupsOnline(members)
    applier = Applier(admin, found.cluster, brokers)
    others = [step for step in found.plan.steps if step.kind is not ItemKind.OFFSETS]
    plan = attrs.evolve(found.plan, steps=others)
    outcomes = await done_steps(applier, attrs.evolve(found, plan=plan))
    # Now: the topics must be there.
    moves, notes = await within_queues(admin, steps, brokers)
    found.notes.extend(notes)
    return applied(
        found, [*outcomes, *await applier.do_steps(moves)], at_end=len(steps) - len(moves)
    )


async def done_steps(applier: Applier, found: Comparison) -> list[StepOutcome]:
    """Do the steps, and what name servers must know of them; note what they did not do."""
    outcomes: list[StepOutcome] = await applier.do_steps(found.plan.steps)
    deleted = {
        (one.step.place, one.step.name)
        for one in outcomes
        if one.step.after is None and one.reason is None
    }
    left = {
        name
        for place, broker in found.answers.values.items()
        for name in broker.kinds.get(ItemKind.TOPICS) or {}
        if (place, name) not in deleted
    }
    found.notes.extend(await applier.forget_topics(outcomes, left))
    found.notes.extend(await applier.order_topics(found.document, outcomes))
    return outcomes


def applied(found: Comparison, outcomes: Iterable[StepOutcome], *, at_end: int = 0) -> Result:
    """Return what was done.

    ``at_end``: number of offset steps that were not needed, since their groups stand there already.
    """
    rows = [
        {
            "broker": one.step.place,
            "kind": one.step.kind.value,
            "name": one.step.name,
            "action": one.step.action,
            "done": one.reason is None,
            "reason": one.reason,
        }
        for one in outcomes
    ]
    failures = dict(found.failures)
    for row in rows:
        if not row["done"]:
            failures[f"{row['broker']} {row['kind']} {row['name']}"] = str(row["reason"])
    counts = {
        f"{action}d": sum(row["action"] == action and row["done"] is True for row in rows)
        for action in SIGNS
    }
    unchanged = found.plan.unchanged + at_end
    only_silent = len(failures) == len(found.answers.failures)
    table = table_of(
        rows,
        {
            "Broker": "broker",
            "Kind": "kind",
            "Name": "name",
            "Action": "action",
            "Result": lambda row: "done" if row["done"] else "failed",
        },
    )
    if rows:
        text = ", ".join(f"{count} {word}" for word, count in counts.items())
        line = f"{text}, {unchanged} unchanged"
    else:
        line = f"nothing to change: cluster {found.cluster} is as the file says"
    return Result(
        document={
            "cluster": found.cluster,
            "items": rows,
            **counts,
            "unchanged": unchanged,
            "unnamed": found.plan.unnamed,
        },
        blocks=[*([table] if rows else []), line, *unnamed_line(found.plan)],
        failures=failures,
        # Brokers are counted; where steps failed, their parts are, since something was done.
        asked=found.asked + (0 if only_silent else len(rows)),
        notes=found.notes,
    )


def renames(text: str) -> tuple[tuple[str, str], ...]:
    """Read ``broker-a=broker-x,broker-b=broker-y``."""
    pairs = []
    for part in filled(text).split(","):
        old, _, new = part.strip().partition("=")
        if not old or not new:
            raise ValueError(f"{part!r} is not OLD=NEW")
        pairs.append((old, new))
    return tuple(pairs)


FILE = Option("FILE", "the cluster file, YAML or .json", required=True)
CLUSTER = Option("-c, --clusterName NAME", "the cluster (default: the one that the file names)")
RENAME = Option(
    "--rename NAMES", "other names for brokers of the file: OLD=NEW, joined by commas", renames
)

COMMANDS = (
    AdminCommand("clusterExport", export, effect=Effect.ACTS).with_options(
        Option("-c, --clusterName NAME", "the cluster (default: the only one)"),
        Option("-o, --output FILE", "write this file: JSON if it ends with .json, otherwise YAML"),
        Option("--offsets", "with the offsets of the groups"),
        Option("--partial", "leave out brokers that do not answer, and name them in the file"),
    ),
    AdminCommand("clusterDiff", diff).with_options(
        FILE,
        CLUSTER,
        RENAME,
        Option("--prune", "also what `cluster apply --prune` would delete"),
        Option("--offsets", "also the offsets, as `cluster import` would change them"),
    ),
    AdminCommand(
        "clusterApply",
        apply,
        effect=Effect.DESTROYS,
        loss="what the file does not name",
        asks_with="prune",
    ).with_options(
        FILE,
        CLUSTER,
        RENAME,
        Option("--prune", "delete items that the file does not name, of the kinds that it has"),
    ),
    AdminCommand("clusterImport", import_file, effect=Effect.CHANGES).with_options(
        FILE,
        CLUSTER,
        RENAME,
        Option("--force", "also if groups have members, which may overwrite the offsets"),
    ),
)
