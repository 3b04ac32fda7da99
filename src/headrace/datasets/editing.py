"""Edits of a run while it goes on: what a user asks for, and how it becomes a change of the plan.

`Edit` holds one edit. `Editing` applies edits one after another: it finds out which sources of a new mix are those of
the old one, and gives the plan and the dataset of each of its series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np

from headrace.config import check_choice, nearest, nearest_or_known
from headrace.datasets.blend import Blend, ScheduledBlend
from headrace.datasets.dataset import Dataset, FixedDataset, RaggedDataset
from headrace.datasets.exclusions import Exclusion, check_not_all, dropped, range_numbers, ranges_text
from headrace.datasets.mix import Mix, check_one_tokenizer, named_datasets, named_path, node_of
from headrace.errors import ConfigError
from headrace.plan import BatchSchedule, Branch, Declared, IntArray, Leaf, Order, Schedule, leaves
from headrace.plan.chaptered.changes import End, PlanChange, PlanEditor
from headrace.plan.chaptered.chapters import Length
from headrace.plan.chaptered.sequence import NOTHING
from headrace.plan.recipe import contents_hash, differing_parts

Then = Literal["drop", "defer"]

Replace = Literal["no", "step", "later"]
"""Which edits an edit takes the place of: none, the one at its step, or this one and all at later steps."""


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One edit of a run: what holds from a step on, and why.

    Attributes:
        at_step: the first step that is another.
        reason: why, in the words of the user.
        date: when the edit was made, in ISO format.
        data: the data from this step on; None leaves them as they are.
        renamed: new name -> old name of sources that go on under another name.
        pieces: global batches, as (steps since ``at_step``, size); empty leaves them as they are.
        order: the order of the epochs that begin from now on; None leaves it as it is.
        exclude: path of a source -> what of it is never trained on from now on.
        left_out: path of a source that begins anew with this edit -> the samples that it lacks, as text with ranges,
            because earlier edits dropped documents. `Editing.apply` finds them.
        length: how the run is measured; None leaves it as it is.
        skip_steps: number of steps that are skipped.
        then: what becomes of the samples of these steps.
        asked: the names of what was asked for.
    """

    at_step: int
    reason: str = ""
    date: str = ""
    data: Dataset | Mix | None = None
    renamed: dict[str, str] = {}
    pieces: tuple[tuple[int, int], ...] = ()
    order: Order | None = None
    exclude: dict[str, Exclusion] = {}
    left_out: dict[str, str] = {}
    length: Length | None = None
    skip_steps: int = 0
    then: Then = "drop"
    asked: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describe the edit in one line: the step, what was changed, and why."""
        what = ", ".join(self.asked)
        if self.skip_steps:
            what = f"skips {self.skip_steps:,} steps ({self.then})"
        if self.exclude:
            what += "".join(f", {path or 'the dataset'}: {one.describe()}" for path, one in self.exclude.items())
        return f"step {self.at_step:,}: {what}" + (f" ({self.reason})" if self.reason else "")


REWEIGHTING: Final = {"weights", "add", "remove"}
"""The arguments of an edit that change the blend there is."""


def asked_for(**given: Any) -> tuple[str, ...]:
    """Return the names of the arguments of `Run.edit` that change something.

    Raises:
        ConfigError: nothing is changed, or arguments contradict each other.
    """
    asked = tuple(name for name, value in given.items() if value is not None and value != ())
    if not asked:
        raise ConfigError(
            "an edit changes something: pass weights, data, global_batch_size, order, exclude, samples or epochs"
        )
    data, order = given["data"], given["order"]
    if data is not None and {*asked} & REWEIGHTING:
        raise ConfigError("data= replaces all of the data: leave weights=, add= and remove= out")
    if order is not None and not isinstance(order, Order):
        raise ConfigError(f"order is {order!r}; expected an Order, as headrace.Order(kind='full', seed=1)")
    if {"samples", "epochs"} <= {*asked}:
        raise ConfigError("epochs and samples are both given: a run is measured in one of them")
    return asked


class EditedSource:
    """A source as an `Editing` knows it: its name and its dataset at the time, and what is excluded of it.

    Attributes:
        dataset: the dataset as the user gave it.
        masked: (n,) int64, rising: documents that are masked out of it.
        pad_id: the id that stands for their tokens.
        dropped: (n,) int64, rising: documents whose samples are left out.
        samples: (n,) int64, rising: other samples that are left out.
    """

    def __init__(self, number: int, path: str, dataset: Dataset) -> None:
        self.number = number
        self.path = path
        self.dataset = dataset
        self.masked = self.dropped = self.samples = NOTHING
        self.pad_id: int | None = None

    @property
    def fed(self) -> Dataset:
        """The dataset that is fed: without what is masked."""
        return self.dataset if self.pad_id is None else self.dataset.without(self.masked, self.pad_id)

    def exclude(self, one: Exclusion) -> None:
        """Exclude more. Raises ConfigError for another pad id than before, or if nothing is left."""
        if one.how == "drop":
            self.dropped = np.union1d(self.dropped, range_numbers(one.documents))
            self.samples = np.union1d(self.samples, range_numbers(one.samples))
            return
        if self.pad_id not in (None, one.pad_id):
            raise ConfigError(
                f"the masked tokens of {_shown(self.path)} have the id {self.pad_id} since an earlier edit, and now "
                f"pad_id is {one.pad_id}: leave it out, or pass the same"
            )
        masked = np.union1d(self.masked, range_numbers(one.documents))
        if isinstance(self.dataset, FixedDataset):
            check_not_all(masked, self.dataset)
        self.masked, self.pad_id = masked, one.pad_id

    def cut_anew(self, dataset: Dataset) -> None:
        """Read the same store as another dataset; what is excluded stays so.

        Raises:
            ConfigError: samples were excluded by numbers that mean others now.
        """
        alike = isinstance(dataset, RaggedDataset) and len(dataset) == len(self.dataset)
        if len(self.samples) and not alike:
            raise ConfigError(
                f"{len(self.samples):,} samples of {_shown(self.path)} are excluded by their numbers, and in "
                f"{dataset.describe()} these are other samples: exclude documents instead, in the edit before, or keep "
                "the dataset"
            )
        self.dataset = dataset

    @property
    def name(self) -> str:
        """The last part of the path."""
        return _name(self.path)


class Editing:
    """A run that is edited from step to step.

    Attributes:
        data: the data as they are now.
        editor: the plan.
        datasets: for each series of the plan its dataset.
        sources: the sources, by number.

    Args:
        data: the data that the run was begun with.
        order: its order.
        schedule: its global batches.
        length: how it is measured.
    """

    def __init__(self, data: Dataset | Mix, order: Order, schedule: BatchSchedule, length: Length) -> None:
        self.data = data
        root = node_of("", data)
        self.editor = PlanEditor(root, order, schedule, length)
        by_path = named_datasets(data)
        paths = [leaf.path for leaf in leaves(root)]
        self.sources = [EditedSource(number, path, by_path[path]) for number, path in enumerate(paths)]
        self.datasets: list[Dataset] = []
        self._note_datasets()

    def copied(self) -> Editing:
        """Return an editing that goes on from here by itself. O(sources + edits)."""
        found = copy(self)
        found.editor, found.datasets = self.editor.copied(), [*self.datasets]
        found.sources = [copy(source) for source in self.sources]
        return found

    def apply(self, edit: Edit) -> Edit:
        """Apply an edit, and return it with all that was found out. If it is refused, do not use the editing any more.

        Raises:
            ConfigError: it is not possible; the message says why, and what is.
        """
        root: Declared | None = None
        numbers: dict[str, int] = {}
        fresh: dict[int, Leaf] = {}
        if edit.data is not None:
            root = node_of("", edit.data)
            self._check_fields(edit.data)
            numbers, fresh = self._matched(edit, root)
            self.data = edit.data
        elif edit.renamed:
            raise ConfigError(f"renamed={dict(edit.renamed)!r} goes with data=, in which sources have other names")
        self._check_endless(edit)
        excluded = self._exclude(edit, numbers or self.editor.sources)
        left_out = {source.number: range_numbers(one.left_out) for source, one in excluded if one.how == "drop"}
        lacking = {number: self._left_out(edit, self.sources[number], leaf) for number, leaf in fresh.items()}
        left_out |= lacking
        self._check_passes(root or self.editor.root, numbers or self.editor.sources)
        change = PlanChange(
            step=edit.at_step,
            root=root,
            sources=numbers,
            end=_end(edit.data),
            fresh=fresh,
            pieces=edit.pieces,
            order=edit.order,
            replaced=frozenset(source.number for source, one in excluded if one.how == "mask") - fresh.keys(),
            left_out={number: samples for number, samples in left_out.items() if len(samples)},
            skip_steps=edit.skip_steps,
            defer=edit.then == "defer",
            length=edit.length,
        )
        self.editor.apply(change)
        self._note_datasets()
        texts = {self.sources[number].path: ranges_text(samples) for number, samples in lacking.items() if len(samples)}
        return msgspec.structs.replace(edit, left_out=texts)

    def _note_datasets(self) -> None:
        """Note the datasets of series that are new."""
        new = self.editor.source_of[len(self.datasets) :]
        fed = {number: self.sources[number].fed for number in set(new)}
        self.datasets += [fed[number] for number in new]

    def _matched(self, edit: Edit, root: Declared) -> tuple[dict[str, int], dict[int, Leaf]]:
        """Return the number of the source at each path of a new tree, and the sources that begin anew."""
        by_path = named_datasets(edit.data) if edit.data is not None else {}
        found: dict[str, int] = {}
        fresh: dict[int, Leaf] = {}
        taken: dict[int, str] = {}
        renamed = dict(edit.renamed)
        places = {leaf.path: leaf for leaf in leaves(root)}
        for path in sorted(places, key=lambda path: path not in renamed and _name(path) not in renamed):
            source = self._known(path, by_path, renamed)
            if source is None:
                source = EditedSource(self.editor.add(places[path]), path, by_path[path])
                self.sources.append(source)
            elif source.number in taken:
                raise ConfigError(
                    f"{path!r} and {taken[source.number]!r} are both the source {_shown(source.path)} of before: say "
                    "which one is, with renamed={'new name': 'old name'}, and give the other a name of its own"
                )
            elif _are_same(by_path[path], source.dataset):
                source.dataset = by_path[path]
            elif not _are_same(by_path[path], source.fed):
                self._check_same_data(path, source, by_path[path])
                source.cut_anew(by_path[path])
                fresh[source.number] = places[path]
            taken[source.number] = path
            found[path] = source.number
            source.path = path
        if renamed:
            raise ConfigError(
                f"renamed names {sorted(renamed)}, which are not in the new data: its sources are {sorted(places)}"
            )
        return found, fresh

    def _known(self, path: str, by_path: Mapping[str, Dataset], renamed: dict[str, str]) -> EditedSource | None:
        """Return the source that a path of the new data goes on with; None if it is new."""
        name = _name(path)
        for asked in (path, name):
            if asked in renamed:
                return self._named(renamed.pop(asked))
        same = [source for source in self.sources if source.path == path and path]
        if same:
            return same[0]
        if not name or any(not source.name for source in self.sources):
            # The single dataset of a run has no name, so that its content has to say which one it is.
            alike = [source for source in self.sources if _are_same(source.dataset, by_path[path])]
            if len(alike) == 1 and (not name or not alike[0].name):
                return alike[0]
        named = [source for source in self.sources if source.name == name and source.path not in by_path]
        others = [other for other in by_path if _name(other) == name and not any(s.path == other for s in self.sources)]
        if len(named) == 1 and len(others) == 1:
            return named[0]
        if named:
            raise ConfigError(
                f"the name {name!r} is ambiguous: before, it was {[source.path for source in named]}, and now it is "
                f"{others}; say which source goes on where, with renamed={{'new path': 'old path'}}"
            )
        return None

    def _named(self, name: str) -> EditedSource:
        """Return the source with a path or a name. Raises ConfigError if there is none, or more than one."""
        path = named_path(name or ".", [source.path for source in self.sources])
        return next(source for source in self.sources if source.path == path)

    def _check_same_data(self, path: str, source: EditedSource, dataset: Dataset) -> None:
        """Raise ConfigError if a source would be other data under the same name."""
        before, now = _content(source.dataset.recipe), _content(dataset.recipe)
        if before is None or before != now or _are_other_contents(source.dataset, dataset):
            raise ConfigError(
                f"{_shown(path)} was {source.dataset.describe()}, and is now {dataset.describe()}, which is other "
                "data: give it a name of its own, so that it begins as a new source"
            )

    def _check_fields(self, data: Dataset | Mix) -> None:
        """Raise ConfigError if samples of new data cannot stand in the batches of the run."""
        known = {id(source.dataset) for source in self.sources}
        named = named_datasets(data)
        new = {path: dataset for path, dataset in named.items() if id(dataset) not in known}
        if not new:
            return
        expected = self.datasets[0].shown_fields
        for path, dataset in new.items():
            if (found := dataset.shown_fields) != expected:
                raise ConfigError(
                    f"the batches of a run have the same fields from its begin to its end: so far {expected}, and "
                    f"{_shown(path)} has {found}"
                )
        both = [(source.path, source.dataset) for source in self.sources], list(named.items())
        for sources in both:
            try:
                check_one_tokenizer(sources)
            except ConfigError:
                return  # which the mix was told to allow
        check_one_tokenizer([*both[0], *both[1]])

    def _check_endless(self, edit: Edit) -> None:
        endless = [source for source in self.sources if source.dataset.traits.is_endless]
        if not endless:
            return
        what = f"{type(endless[0].dataset).__name__} has an order of its own, without epochs"
        if edit.order is not None and edit.order.draws:
            raise ConfigError(f"{what}: its order cannot be changed; allowed is Order(kind='none')")
        if edit.skip_steps and edit.then == "defer":
            raise ConfigError(f"{what}, at whose end skipped samples could come: pass then='drop'")
        dropping = [path for path, one in edit.exclude.items() if one.how == "drop"]
        if wrong := [path for path in dropping if self._named(path) in endless]:
            raise ConfigError(f"{what}, so that no samples of {wrong} can be left out")

    def _exclude(self, edit: Edit, numbers: Mapping[str, int]) -> list[tuple[EditedSource, Exclusion]]:
        """Note what is excluded of which source, by the paths that sources have from now on."""
        found = [(self.sources[numbers[path]], one) for path, one in edit.exclude.items()]
        for source, one in found:
            source.exclude(one)
        return found

    def _left_out(self, edit: Edit, source: EditedSource, leaf: Leaf) -> IntArray:
        """(n,) int64, rising: the samples that are left out of a source whose samples are others from now on."""
        if (known := edit.left_out.get(source.path)) is not None:
            return range_numbers(known)
        return np.union1d(source.samples, dropped(source.dropped, source.dataset, leaf))

    def _check_passes(self, root: Declared, numbers: Mapping[str, int]) -> None:
        """Raise ConfigError if a mix counts on whole epochs of a source that are shorter, as samples are left out."""
        for source in self.sources:
            if not len(source.dropped) and not len(source.samples):
                continue
            above = _above(root, source.number, numbers)
            if any(not isinstance(node, Branch | Schedule) or node.num_samples is not None for node in above):
                raise ConfigError(
                    f"{_shown(source.path)} is part of a mix with passes, which counts on all of its samples, and "
                    "samples of it are left out: mask documents with how='mask', or mix by weights without an end"
                )


def reweighted(
    data: Dataset | Mix,
    *,
    weights: Mapping[str, float | Fraction] | None,
    add: Mapping[str, Dataset | Mix],
    remove: Sequence[str],
) -> Mix:
    """Return a blend with other weights, and with sources added or removed.

    Raises:
        ConfigError: the data are no blend by weights; a name is unknown, or is there twice; weights are missing.
    """
    if not isinstance(data, Blend | ScheduledBlend) or (isinstance(data, Blend) and data.end == "repeats"):
        raise ConfigError(
            f"weights=, add= and remove= change a blend by weights, and the data of this run are {data!r:.80}: pass "
            "the new data whole, with data="
        )
    children = dict(data.children)
    for name in remove:
        if name not in children:
            raise ConfigError(f"remove={list(remove)!r}: the blend has no {name!r}{nearest_or_known(name, children)}")
        del children[name]
    for name, child in add.items():
        if name in children:
            raise ConfigError(f"add={sorted(add)!r}: {name!r} is already in the blend; give it another name")
        children[name] = child
    if not children:
        raise ConfigError(f"remove={list(remove)!r} removes all sources of the blend: end the run with samples=")
    if weights is None:
        if add or not isinstance(data, Blend):
            raise ConfigError(f"pass weights= too, one for each of {sorted(children)}: they hold from this step on")
        weights = {name: data.numbers[name] for name in children}
    if weights.keys() != children.keys():
        unknown, missing = sorted(weights.keys() - children.keys()), sorted(children.keys() - weights.keys())
        names = f"no source {unknown}{nearest(unknown[0], missing)}" if unknown else f"no weight for {missing}"
        raise ConfigError(
            f"weights={dict(weights)!r:.120}: there is {names}; pass one for each source from this step on, which are "
            f"{sorted(children)}. A source that comes no more is named in remove="
        )
    options: dict[str, Any] = {"block_samples": data.block_samples}
    if isinstance(data, Blend):
        options |= {"unit": data.unit, "end": data.end, "num_samples": data.wanted}
    return Blend(children, weights=weights, **options)


def skipped(steps: range, then: str) -> dict[str, Any]:
    """Return the fields of an `Edit` that skips steps. Raises ConfigError for another range than a run of steps."""
    if not isinstance(steps, range) or steps.step != 1 or not len(steps) or steps.start < 0:
        raise ConfigError(f"steps={steps!r}; expected a range of steps, such as range(1200, 1250)")
    check_choice("then", then, get_args(Then))
    return {"at_step": steps.start, "skip_steps": len(steps), "then": then}


def kept_edits(edits: Sequence[Edit], step: int, replace: Replace) -> Sequence[Edit]:
    """Return the edits before a step, on which an edit at the step is put.

    Raises:
        ConfigError: there are edits at the step, or later ones, that ``replace`` does not give up; or none to replace.
    """
    check_choice("replace", replace, get_args(Replace))
    kept = [edit for edit in edits if edit.at_step < step]
    same = [edit for edit in edits if edit.at_step == step]
    later = edits[len(kept) + len(same) :]
    if replace == "step" and not same:
        steps = ", ".join(f"{edit.at_step:,}" for edit in edits) or "none"
        raise ConfigError(f"replace='step': the run has no edit at step {step:,}; the steps of its edits are {steps}")
    if later and replace != "later":
        named = "; ".join(edit.describe() for edit in later)
        raise ConfigError(
            f"an edit at step {step:,} would drop the later ones ({named}): undo them first, edit the run at a later "
            "step, or pass replace='later' (--replace later), and make them again"
        )
    if same and replace == "no":
        raise ConfigError(
            f"the run is already edited at step {step:,} ({same[0].describe()}): to put another edit in its place, "
            "which makes both changes, pass replace='step' (--replace step)"
        )
    return kept


def now() -> str:
    """Return the date and time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _end(data: Dataset | Mix | None) -> End:
    return data.end if isinstance(data, Blend) else "endless"


def _above(node: Declared, source: int, sources: Mapping[str, int]) -> Iterator[Declared]:
    """Yield the nodes above a source."""
    if isinstance(node, Leaf):
        return
    if any(sources[leaf.path] == source for leaf in leaves(node)):
        yield node
        for child in node.children:
            yield from _above(child, source, sources)


def _content(recipe: Mapping[str, Any]) -> Any:
    """Return the fingerprint of the store in the recipe of a dataset; None if there is not exactly one."""
    while isinstance(recipe.get("dataset"), Mapping):
        recipe = recipe["dataset"]
    return recipe.get("store")


def _are_same(one: Dataset, other: Dataset) -> bool:
    return one is other or (one.fingerprint == other.fingerprint and not _are_other_contents(one, other))


def _are_other_contents(one: Dataset, other: Dataset) -> bool:
    return bool(differing_parts(contents_hash(one.recipe), contents_hash(other.recipe)))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _shown(path: str) -> str:
    return f"source {path!r}" if path else "the dataset of the run"
