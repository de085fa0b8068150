"""Which column of a table is which: inputs, target, weights and groups, in training and for a model that is trained.

Columns count from 0. Those of a text without a header are called f0, f1, … . A model finds its columns by name; by
place where it was trained on arrays without names.
"""

import re
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from features.cell_text import counted, normal_name, shown, title_of
from features.errors import DataError, UsageError
from features.source import Columns, SourceSpec
from features.tables.readers import Table

TARGET_NAMES = ("y", "target", "label")


@dataclass(frozen=True)
class TableLayout:
    """Names of all columns of a table, and the places of those that are read; inputs: in the model's order."""

    names: tuple[str, ...]
    inputs: tuple[int, ...]
    target: int | None = None
    weights: int | None = None
    groups: int | None = None

    @property
    def input_names(self) -> list[str]:
        return [self.names[place] for place in self.inputs]

    def without(self, left_out: Collection[int]) -> "TableLayout":
        """Return the layout without some of the inputs, by their places among these."""
        return replace(self, inputs=tuple(place for k, place in enumerate(self.inputs) if k not in left_out))

    def title(self, place: int) -> str:
        return title_of(self.names[place], place)


def training_layout(spec: SourceSpec, table: Table) -> tuple[TableLayout, Columns]:
    """Return the layout of a table to train on, and the columns of the model.

    The target is the column that `spec.target` names, else one called y, target or label, else the last. Raises
    DataError for too few columns, UsageError where a column that is asked for is none.
    """
    path, names = table.path, table.names
    asked = {"weights": spec.weights, "groups": spec.groups}
    others = {what: named_column(table, name, what) for what, name in asked.items() if name is not None}
    target = target_column(table, spec.target, others.values())
    roles = {"target": target, **others}
    taken = tuple(roles.values())
    for place in taken:
        both = [role for role, of_role in roles.items() if of_role == place]
        if len(both) > 1:
            raise UsageError(f"{path}: column {names[place]} is both {' and '.join(both)}; name another one")
    places = _chosen_places(spec, names, taken, table.index, path)
    if not places:
        few = "one column" if len(names) == 1 else counted(len(names), "column")
        index = shown(names[place] for place in sorted(table.index))
        why = f", with the index of a frame ({index})" if index else ""
        if len(names) == 1 and spec.header:
            why = f" ({names[0]!r:.60}); cells are separated by commas, semicolons or tabs, below a line of names"
        raise DataError(f"{path}: has {few}{why}; inputs and {' and '.join(('a target', *others))} are needed")
    columns = Columns(
        inputs=tuple(names[place] for place in places),
        target=names[target],
        header=spec.header,
        decimal=spec.decimal,
        weights=names[others["weights"]] if "weights" in others else None,
        groups=names[others["groups"]] if "groups" in others else None,
    )
    return TableLayout(tuple(names), tuple(places), target, **others), columns


def _chosen_places(
    spec: SourceSpec, names: list[str], taken: Sequence[int], index: Container[int], path: Path
) -> list[int]:
    """Return the places of the inputs in their order in the file: all but an index, or those that are asked for."""
    given = spec.columns if spec.columns is not None else spec.drop
    asked = None if given is None else [normal_name(name) for name in given]
    every = [place for place in range(len(names)) if place not in taken and (spec.columns or place not in index)]
    if asked is None:
        return every
    key = "`data.columns`" if spec.columns is not None else "`data.drop`"
    if spec.columns is not None and spec.drop is not None:
        raise UsageError("`data.columns` and `data.drop`: name the inputs, or what is none; leave one of them out")
    for name in asked:
        if name in names and names.index(name) in taken:
            what = {spec.weights: "the weights", spec.groups: "the groups"}.get(name, "the target")
            raise UsageError(f"{key}: {name!r} is {what}; leave it out, or name another column for that")
        if name not in names:
            raise UsageError(f"{key}: {name!r} is no column of {path}, which has {', '.join(names)[:400]}")
    places = [place for place in every if (names[place] in asked) == (spec.columns is not None)]
    if not places:
        raise UsageError(f"{key}: leaves no input of {path}")
    return places


def target_column(table: Table, asked: str | None, but: Collection[int] = ()) -> int:
    """Return the target's column: that asked for, else one of the usual names, else the last of those not in `but`.

    Of an index, or without a name, none is taken unless it is asked for. Raises UsageError where `asked` names none.
    """
    if asked is not None:
        return named_column(table, asked, "target")
    names = table.names
    places = [place for place in range(len(names)) if place not in table.index | table.nameless]
    last = max((place for place in places if place not in but), default=len(names) - 1)
    return next((place for name in TARGET_NAMES for place in places if names[place] == name), last)


def named_column(table: Table, asked: str, what: str) -> int:
    """Return the column of a name, or at a position from 0 in the file, without an index, or from its end.

    `what` it is for stands in errors. Raises UsageError where there is none.
    """
    names, path = table.names, table.path
    if normal_name(asked) in names:
        return names.index(normal_name(asked))
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", asked.strip()):
        raise UsageError(f"{what} {asked!r} is no column of {path}, which has columns {', '.join(names)[:400]}")
    places = [place for place in range(len(names)) if place not in table.index]
    if not -len(places) <= int(asked) < len(places):
        raise UsageError(f"{what} {asked} is no column of {path}; it has columns 0 to {len(places) - 1}")
    return places[int(asked)]


def model_layout(table: Table, asked: str | None, columns: Columns, n_inputs: int, *, labelled: bool) -> TableLayout:
    """Return the layout of a table as a model reads it.

    columns : those of the table trained on, n_inputs of them inputs; asked: the target, None as in training
    labelled : whether labels are needed

    Raises DataError where columns are missing, or too many without names, UsageError where `asked` names none.
    """
    path, names, others = table.path, table.names, table.index | table.nameless
    target = None if asked is None else named_column(table, asked, "target")
    weights, groups = (names.index(name) if name in names else None for name in (columns.weights, columns.groups))
    if columns.inputs:
        if asked is None and columns.target in names:
            target = names.index(columns.target)
        inputs = _by_name(names, columns, path)
        unknown = set(range(len(names))) - {*inputs, target, weights, groups, *others}
        if target is None and columns.target is None and len(unknown) == 1:  # an estimator knows no name of its target
            (target,) = unknown
    else:
        every = [place for place in range(len(names)) if place not in others or place == target]
        if target is None and len(every) == n_inputs + 1:
            target = target_column(table, None)
        inputs = tuple(place for place in every if place != target)
        if len(inputs) != n_inputs:
            wanted = f"{n_inputs} inputs" + (" and a target" if labelled or asked else "")
            raise DataError(f"{path}: has {len(every)} columns, wanted the model's {wanted}")
    if labelled and target is None:
        wanted = "" if columns.target is None else f" {columns.target!r}"
        raise DataError(f"{path}: has no target column{wanted}; name the one to compare with (--target NAME)")
    return TableLayout(tuple(names), inputs, target, weights, groups)


def _by_name(names: list[str], known: Columns, path: Path) -> tuple[int, ...]:
    wanted = [normal_name(name) for name in known.inputs]
    missing = [name for name in wanted if name not in names]
    if missing:
        others = [name for name in names if name not in wanted]
        has = f" and has {_listed(others)}" if others else ""
        advice = "give the columns of the training file by their names"
        raise DataError(f"{path}: lacks {_listed(missing)}{has}; {advice}")
    return tuple(names.index(name) for name in wanted)


def _listed(names: Sequence[str]) -> str:
    return f"the column{'s' if len(names) > 1 else ''} {shown([repr(name) for name in names])}"
