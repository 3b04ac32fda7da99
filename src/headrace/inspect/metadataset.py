"""The numbers of a metadataset (weights, shares, samples, tokens, epochs), and its checks.

A check covers the file itself, its joins, and every dataset that it names, each once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from headrace.config import unknown_name
from headrace.datasets import Dataset, Run
from headrace.datasets.media import JoinedMediaDataset
from headrace.datasets.media.file_stores import FILESYSTEM
from headrace.datasets.metadataset import (
    JoinedSource,
    Metadataset,
    Mixed,
    NamedSource,
    Tree,
    load_dataset,
    sources,
)
from headrace.datasets.metadataset.metadataset import build
from headrace.datasets.metadataset.opening import Opener, opener_of
from headrace.datasets.mix import joined, named_datasets, node_of
from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.inspect.answers import Checked, OnProgress, Report, kind_of
from headrace.inspect.blocks import Block, Tabular, Title, Titled
from headrace.inspect.figures import count, plural, short
from headrace.inspect.sample_checks import SampleCheck, SampleVerdict, check_samples
from headrace.inspect.samples import PlainSources, SampleOptions, closed, options_of
from headrace.inspect.store_checks import Verdict, check_store
from headrace.io import can_list, path_at
from headrace.plan import BatchSchedule, Declared, Leaf, LimitNode, RepeatNode
from headrace.plan.nodes import leaf_shares
from headrace.stores import Problem
from headrace.stores.energon import folder_kind
from headrace.stores.opening import sample_layout
from headrace.tracing.curves import samples_of


class NodeNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one node of a mix: a source, a join, or a node that mixes others.

    Attributes:
        name: the part of the path that names it.
        kind: ``source``, ``join``, or how it mixes its children.
        number: its weight, or its repetitions in a ``blend_epochized``, as written in the file; None for the root, in a
            ``concat``, and under a schedule.
        share: its share of the samples of the whole mix, in the long run; under a schedule, by the last piece.
        samples: the samples of one pass; None if it has no end.
        limit: the number of samples that a pass is limited to.
        path: the path of a source; for a join, the paths of all its datasets.
        split_part: the split part of a source.
        subset: for a source of which only a part is read, its first sample and the one after the last.
        subflavors: the subflavors of a source.
        tokens: the tokens of one epoch of a source, if they are known.
        seen: the samples that it has delivered after the steps that were asked for.
        epochs: the same number in passes through a source.
        schedule: for a blend with a schedule, (until, weights by name, whether they ramp) for each piece.
        children: the nodes that it mixes.
    """

    name: str
    kind: Literal["source", "join", "blend", "blend_epochized", "concat"]
    number: float | None
    share: float
    samples: int | None
    limit: int | None = None
    path: str | None = None
    split_part: str | None = None
    subset: tuple[int, int] | None = None
    subflavors: dict[str, Any] | None = None
    tokens: int | None = None
    seen: int | None = None
    epochs: float | None = None
    schedule: tuple[tuple[str | None, dict[str, float], bool], ...] = ()
    children: tuple[NodeNumbers, ...] = ()


class MetadatasetDescription(Report, frozen=True, kw_only=True):
    """All that ``headrace info`` says of a metadataset.

    Attributes:
        path: the file.
        splits: name of a split -> its mix in training.
        steps: the number of steps after which ``seen`` and ``epochs`` are counted, or None.
        global_batch_size: the global batch size of these steps.
    """

    path: str
    splits: dict[str, NodeNumbers]
    steps: int | None
    global_batch_size: int | None

    def shown(self) -> list[Block]:
        """Return what is shown, as blocks."""
        found: list[Block] = [Title(self.path)]
        if self.steps is not None:
            size = self.global_batch_size or 0
            found.append(f"after {count(self.steps)} steps of {count(size)}: {count(self.steps * size)} samples")
        return [*found, *map(_mix_section, self.splits.values())]


def describe_metadataset(path: str, *, steps: int | None, global_batch_size: int | None) -> MetadatasetDescription:
    """Open all datasets of a metadataset, and count. No sample is read, and nothing that a file names is imported.

    Raises:
        HeadraceError: a file is missing, or says something impossible; the message names the place.
    """
    if steps is not None and (steps < 0 or global_batch_size is None):
        raise ConfigError(f"`steps={steps}`: must be 0 or more, and needs `global_batch_size`")
    if global_batch_size is not None and global_batch_size < 1:
        raise ConfigError(f"`global_batch_size` must be at least 1, found {global_batch_size}")
    metadataset = load_dataset(path)
    schedule = None if global_batch_size is None else BatchSchedule.of(global_batch_size)
    samples = None if steps is None or schedule is None else schedule.begin(steps)
    splits: dict[str, NodeNumbers] = {}
    for name in metadataset.splits:
        with _opening(tree := metadataset.tree(name)) as opener:
            splits[name] = _numbers(tree, name, opener, samples, schedule)
    return MetadatasetDescription(path=path, splits=splits, steps=steps, global_batch_size=global_batch_size)


@contextlib.contextmanager
def _opening(tree: Tree) -> Iterator[Opener]:
    """Yield what opens each dataset of a tree, once; in the end all are closed."""
    opener = opener_of(PlainSources(), sources(tree))
    found: dict[str, Dataset] = {}

    def opened(source: NamedSource | JoinedSource) -> Dataset:
        if source.where not in found:
            found[source.where] = opener(source)
        return found[source.where]

    try:
        yield opened
    finally:
        for dataset in found.values():
            closed(dataset)


def _numbers(
    tree: Tree, split: str, opener: Opener, samples: int | None, schedule: BatchSchedule | None = None
) -> NodeNumbers:
    """Return the numbers of the tree of a split, and what its first samples are if their number is given."""
    data = build(tree, opener, training=True, schedule=schedule)
    seen = None if samples is None else samples_of(Run(data, global_batch_size=1).plan, 0, samples)
    return _Counting(named_datasets(data), node_of("", data), seen).numbers(tree, "", name=split, number=None)


class _Counting:
    """Walks along the tree of a metadataset, and looks up the nodes of its plan."""

    def __init__(self, datasets: Mapping[str, Dataset], root: Declared, seen: Mapping[str, int] | None):
        self._datasets, self._seen = datasets, seen
        self._nodes: dict[str, Any] = _by_path(root)
        self._shares = leaf_shares(root)

    def numbers(self, tree: Tree, path: str, *, name: str, number: float | None) -> NodeNumbers:
        node = self._nodes[path]
        limit, samples = None, node.num_samples
        while isinstance(node, LimitNode | RepeatNode):
            if isinstance(node, LimitNode):
                limit = node.num_samples if limit is None else min(limit, node.num_samples)
            node = node.child
        common: dict[str, Any] = {"name": name, "number": number, "samples": samples, "limit": limit}
        if not isinstance(tree, Mixed):
            return NodeNumbers(**common, share=float(self._shares.get(node.path, 0)), **self._source(tree, node))
        numbers = [None] * len(tree.names) if tree.schedule or tree.kind == "concat" else tree.numbers
        children = tuple(
            self.numbers(child, joined(path, name), name=name, number=number)
            for child, name, number in zip(tree.children, tree.names, numbers, strict=True)
        )
        seen = None if self._seen is None else sum(child.seen or 0 for child in children)
        pieces = tuple(
            (
                None if piece.until is None else f"{piece.until[0]} {piece.until[1]}",
                dict(zip(tree.names, piece.weights, strict=True)),
                piece.ramp,
            )
            for piece in tree.schedule
        )
        below = (part for place, part in self._shares.items() if not path or place.startswith(f"{path}/"))
        share = float(sum(below))
        return NodeNumbers(**common, kind=tree.kind, share=share, seen=seen, schedule=pieces, children=children)

    def _source(self, tree: NamedSource | JoinedSource, leaf: Leaf) -> dict[str, Any]:
        dataset = self._datasets[leaf.path]
        seen = None if self._seen is None else self._seen.get(leaf.path or ".", 0)
        found = {
            "subset": None if tree.subset is None else (leaf.first_sample, leaf.first_sample + leaf.num_samples),
            "tokens": round(dataset.num_tokens_per_sample * leaf.num_samples) if dataset.traits.has_tokens else None,
            "seen": seen,
            "epochs": None if seen is None else seen / leaf.num_samples,
        }
        if isinstance(tree, JoinedSource):
            paths = " + ".join(column.path for column in tree.columns)
            return {**found, "kind": "join", "path": paths, "split_part": tree.columns[0].split_part}
        more = {"path": tree.path, "split_part": tree.split_part, "subflavors": tree.subflavors}
        return {**found, "kind": "source", **more}


def _by_path(node: Declared) -> dict[str, Declared]:
    """Return the nodes of a plan by their paths; of several with one path the outermost, or that of the first piece."""
    found = {node.path: node}
    for child in () if isinstance(node, Leaf) else node.children:
        found = {**_by_path(child), **found}
    return found


class MixVerdict(Checked, frozen=True, kw_only=True):
    """What a check of a metadataset found.

    Attributes:
        problems: the problems of the metadataset and of its joins. Those of a dataset are in its own verdict.
        splits: the splits that were checked.
        joins: the number of join indices that were read.
        datasets: the verdicts of all datasets that it reaches, each once.
    """

    splits: tuple[str, ...]
    joins: int
    datasets: tuple[SampleVerdict | Verdict, ...]

    @property
    def all_problems(self) -> Sequence[Problem]:
        """See `Checked`."""
        return [*self.problems, *(problem for dataset in self.datasets for problem in dataset.problems)]

    def shown(self) -> Iterator[Block]:
        """Yield what is shown, as blocks."""
        for dataset in self.datasets:
            yield from dataset.shown()
        joins = f", {plural(self.joins, 'join')} read" if self.joins else ""
        yield self.told(f"{plural(len(self.datasets), 'dataset')} in {plural(len(self.splits), 'split')}{joins}")


def check_mix(path: str, check: SampleCheck, *, on_progress: OnProgress) -> MixVerdict:
    """Check a metadataset with all its datasets, and collect what is wrong.

    Args:
        path: the path of the ``.yaml``.
        check: what to check of samples. Its split part is a split of the metadataset, or None for all splits.
        on_progress: the same as for `check_samples`.

    Raises:
        StoreError: there is no such file, or it is not YAML.
        StoreAwayError: the object store gives no answer.
        ConfigError: the file has keys or values that are not allowed, or no such split.
        WorkerError: a process that decodes has ended.
    """
    metadataset = load_dataset(path)
    wanted = check.dataset.split_part
    if wanted is not None and wanted not in metadataset.splits:
        raise unknown_name(path, "split", wanted, metadataset.splits)
    splits = metadataset.splits if wanted is None else (wanted,)
    mix = _Mix(metadataset)
    for split in splits:
        mix.look(split)
    verdicts: list[SampleVerdict | Verdict] = []
    for place, options in mix.places:
        try:
            own = msgspec.structs.replace(check, dataset=options)
            verdicts.append(
                check_samples(place, own, on_progress=on_progress)
                if kind_of(place) == "samples"
                else check_store(place, tokenizer=None, on_progress=on_progress)
            )
        except (ConfigError, StoreError) as error:
            problem = Problem.of(place, error)
            # Without a verdict; opening the dataset for the mix has mostly reported the same problem.
            if place not in mix.unopened:
                mix.add(problem)
    problems = tuple(mix.problems)
    return MixVerdict(
        path=path,
        ok=not problems and all(verdict.ok for verdict in verdicts),
        problems=problems,
        splits=splits,
        joins=mix.joins,
        datasets=tuple(verdicts),
    )


class _Mix:
    """Goes through the splits of a metadataset, and collects problems and datasets.

    Attributes:
        problems: the problems found so far, each once.
        places: the datasets, each once: path, and how to open it.
        unopened: the paths of datasets that cannot be opened as the metadataset says.
        joins: the number of joins that were read.
    """

    def __init__(self, metadataset: Metadataset) -> None:
        self._metadataset = metadataset
        self.problems: list[Problem] = []
        self.places: list[tuple[str, SampleOptions]] = []
        self.unopened: set[str] = set()
        self.joins = 0

    def look(self, split: str) -> None:
        """Collect the datasets of a split, and try to open and mix them."""
        before = len(self.problems)
        try:
            tree = self._metadataset.tree(split)
            with _opening(tree) as opener:
                for source in sources(tree):
                    self._look_at(source, opener)
                if len(self.problems) == before:
                    build(tree, opener, training=False, schedule=None)
        except HeadraceError as error:
            self._say(error)

    def add(self, problem: Problem) -> None:
        """Add a problem, unless another split had it already."""
        if problem not in self.problems:
            self.problems.append(problem)

    def _say(self, error: HeadraceError) -> None:
        # The messages of metadatasets begin with file and place.
        self.add(Problem.of(self._metadataset.path, error))

    def _look_at(self, source: NamedSource | JoinedSource, opener: Opener) -> None:
        found = list(_places(source))
        self.places += [place for place in found if place not in self.places]
        if isinstance(source, NamedSource):
            for name, aux in (source.aux or {}).items():
                if not _is_there(folder := aux.removeprefix(FILESYSTEM)):
                    self._say(ConfigError(f"{source.where}: aux.{name}: nothing is at {folder}"))
        try:
            if isinstance(dataset := opener(source), JoinedMediaDataset):
                self.joins += 1
                for problem in dataset.store.check():
                    self.add(problem)
            # This compares its subset and limits with the number of its samples.
            build(source, opener, training=False, schedule=None)
        except HeadraceError as error:
            self._say(error)
            self.unopened.update(path for path, _ in found)


def _places(source: NamedSource | JoinedSource) -> Iterator[tuple[str, SampleOptions]]:
    """Yield the datasets of a source, with all their split parts, even if the metadataset uses only one."""
    if isinstance(source, JoinedSource):
        for column in source.columns:
            yield column.path, options_of(column)
        return
    yield source.path, options_of(source)
    for aux in (source.aux or {}).values():
        if not aux.startswith(FILESYSTEM) and sample_layout(aux) not in (None, "files"):
            yield aux, SampleOptions()


def _is_there(path: str) -> bool:
    """Return whether something is at a path; a folder on a web server shows only in its metadata, or by its slash."""
    place = path_at(path)
    return place.exists() or (not can_list(place) and folder_kind(place) is not None)


Row = tuple[str, ...]


def _mix_section(root: NodeNumbers) -> Titled:
    length = "endless" if root.samples is None else f"{count(root.samples)} samples a pass"
    heads = ("", "weight", "times", "share", "samples", "tokens", "seen", "epochs", "of")
    table = Tabular.used(heads, list(_mix_rows(root)), left=("", "of"))
    return Titled(f"split {root.name}: {root.kind}, {length}", [table, *_schedules(root, "")])


def _mix_rows(node: NodeNumbers, first: str = "", rest: str = "", *, in_epochs: bool = False) -> Iterator[Row]:
    """Yield a row for a node and those below it; the number of a child of a ``blend_epochized`` is its repetitions."""
    weight = "" if node.number is None else f"{node.number:g}"
    samples = "endless" if node.samples is None else count(node.samples)
    cells = [f"{node.share:.3%}", samples if node.limit is None else f"first {samples}"]
    cells.append("" if node.tokens is None else short(node.tokens).strip())
    cells.append("" if node.seen is None else count(node.seen))
    cells.append("" if node.epochs is None else f"{node.epochs:,.2f}")
    of: str = node.kind if first else ""
    if not node.children:
        part = "" if node.split_part is None else f" {node.split_part}"
        subset = "" if node.subset is None else f", samples {count(node.subset[0])} to {count(node.subset[1] - 1)}"
        of = f"{node.path}{part}{subset}"
    yield (first + node.name, "" if in_epochs else weight, weight if in_epochs else "", *cells, of)
    for child in node.children:
        branch, line = ("└─ ", "   ") if child is node.children[-1] else ("├─ ", "│  ")
        yield from _mix_rows(child, rest + branch, rest + line, in_epochs=node.kind == "blend_epochized")


def _schedules(node: NodeNumbers, path: str) -> Iterator[str]:
    place = f"{path}/{node.name}" if path else node.name
    for until, weights, ramp in node.schedule:
        shown = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        yield f"{place}: {'on' if until is None else f'until {until}'}{', moving to' if ramp else ''}: {shown}"
    for child in node.children:
        yield from _schedules(child, place)


def mix_paths(path: str) -> list[str]:
    """Return the paths of all datasets that a metadataset names, without opening them.

    Raises:
        HeadraceError: the file, or one that it names, cannot be read, or says something impossible.
    """
    metadataset = load_dataset(path)
    found = (one.path for split in metadataset.splits for one in metadataset.traverse(split))
    return list(dict.fromkeys(found))
