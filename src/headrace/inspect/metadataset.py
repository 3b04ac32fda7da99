"""The numbers of a metadataset (weights, shares, samples, tokens, epochs), and its checks.

A check covers the file itself, its joins, and every dataset that it names, each once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from headrace.config import unknown_name
from headrace.datasets.dataset import Dataset
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
from headrace.errors import ConfigError, HeadraceError, StoreAwayError, StoreError
from headrace.inspect.answers import Answer, Checked, OnProgress, Report, kind_of
from headrace.inspect.blocks import Block, Tabular, Title, Titled
from headrace.inspect.figures import count, plural, short
from headrace.inspect.sample_checks import SampleCheck, SampleVerdict, check_samples
from headrace.inspect.samples import PlainSources, SampleOptions, closed, options_of
from headrace.inspect.store_checks import Verdict, check_store
from headrace.io import can_list, path_at
from headrace.plan import BatchSchedule, Branch, Declared, Leaf, LimitNode, RepeatNode, Schedule
from headrace.stores import Problem
from headrace.stores.energon import folder_kind
from headrace.stores.opening import sample_layout


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
        return [*found, *(_mix_section(self, root) for root in self.splits.values())]


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
    splits = {
        name: _split_numbers(metadataset, name, steps=steps, global_batch_size=global_batch_size)
        for name in metadataset.splits
    }
    return MetadatasetDescription(path=path, splits=splits, steps=steps, global_batch_size=global_batch_size)


def _split_numbers(
    metadataset: Metadataset, split: str, *, steps: int | None, global_batch_size: int | None
) -> NodeNumbers:
    data = metadataset.train(split, options=PlainSources(), global_batch_size=global_batch_size)
    root = node_of("", data)
    seen = None
    if steps is not None and global_batch_size is not None:
        seen = _given(root, BatchSchedule.of(global_batch_size).begin(steps))
    counting = _Counting(named_datasets(data), _by_path(root), seen)
    try:
        return counting.numbers(metadataset.tree(split), "", name=split, number=None, share=1.0)
    finally:
        for dataset in counting.datasets.values():
            closed(dataset)


class _Counting:
    """Walks along the tree of a metadataset, and looks up the nodes of its plan."""

    def __init__(self, datasets: Mapping[str, Dataset], nodes: Mapping[str, Any], seen: Mapping[str, int] | None):
        self.datasets, self._nodes, self._seen = datasets, nodes, seen

    def numbers(self, tree: Tree, path: str, *, name: str, number: float | None, share: float) -> NodeNumbers:
        node = self._nodes[path]
        limit, samples = None, node.num_samples
        while isinstance(node, LimitNode | RepeatNode):
            if isinstance(node, LimitNode):
                limit = node.num_samples if limit is None else min(limit, node.num_samples)
            node = node.child
        common: dict[str, Any] = {"name": name, "number": number, "share": share, "samples": samples, "limit": limit}
        if not isinstance(tree, Mixed):
            return NodeNumbers(**common, **self._source(tree, node))
        shares = _shares(node)
        places = [joined(path, child) for child in tree.names]
        numbers = [None] * len(places) if tree.schedule or tree.kind == "concat" else tree.numbers
        children = tuple(
            self.numbers(child, place, name=name, number=number, share=share * shares.get(place, 0.0))
            for child, place, name, number in zip(tree.children, places, tree.names, numbers, strict=True)
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
        return NodeNumbers(**common, kind=tree.kind, seen=seen, schedule=pieces, children=children)

    def _source(self, tree: NamedSource | JoinedSource, leaf: Leaf) -> dict[str, Any]:
        dataset = self.datasets[leaf.path]
        seen = None if self._seen is None else self._seen.get(leaf.path, 0)
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


def _given(node: Declared, num_ranks: int) -> Counter[str]:
    """Return how many samples each source has among the first ones of a node, without those that a limit left out."""
    if isinstance(node, Leaf):
        return Counter({node.path: num_ranks})
    given: Counter[str] = Counter()
    if isinstance(node, Schedule):
        given.update(node.counts(num_ranks))  # no limits below
    elif isinstance(node, LimitNode) and node.num_samples < (node.child.num_samples or 0):
        # Every pass begins like the first one, apart from a sample or two if passes further down have other lengths.
        passes, within = divmod(num_ranks, node.num_samples)
        first = _given(node.child, node.num_samples)
        given.update({path: passes * count for path, count in first.items()})
        given.update(_given(node.child, within))
    else:
        for child, count in zip(node.children, node.counts(num_ranks), strict=True):
            given.update(_given(child, count))
    return given


def _by_path(node: Declared) -> dict[str, Declared]:
    """Return the nodes of a plan by their paths; of several with one path the outermost, or that of the first piece."""
    found = {node.path: node}
    for child in () if isinstance(node, Leaf) else node.children:
        found = {**_by_path(child), **found}
    return found


def _shares(node: Declared) -> dict[str, float]:
    """Return the share of each child in the samples of this node, by its path; of a schedule those at its end."""
    if isinstance(node, Schedule):
        return _shares(node.children[-1])
    children = () if isinstance(node, Leaf) else node.children
    counts = node.shares if isinstance(node, Branch) else [child.num_samples or 0 for child in children]
    return {child.path: count / sum(counts) for child, count in zip(children, counts, strict=True)}


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
        except StoreAwayError:
            raise
        except (ConfigError, StoreError) as error:
            # Without a verdict; opening the dataset for the mix has mostly reported the same problem.
            if place not in mix.unopened:
                mix.add(Problem(path=place, place="", message=_without(str(error), place)))
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
        self._opened: dict[str, Dataset] = {}
        self._open: Opener = PlainSources().dataset
        self.problems: list[Problem] = []
        self.places: list[tuple[str, SampleOptions]] = []
        self.unopened: set[str] = set()
        self.joins = 0

    def look(self, split: str) -> None:
        """Collect the datasets of a split, and try to open and mix them."""
        before = len(self.problems)
        try:
            tree = self._metadataset.tree(split)
            self._open = opener_of(PlainSources(), sources(tree))
            for source in sources(tree):
                self._look_at(source)
            if len(self.problems) == before:
                build(tree, self._dataset, training=False, schedule=None)
        except StoreAwayError:
            raise
        except HeadraceError as error:
            self._say(str(error))
        finally:
            for dataset in self._opened.values():
                closed(dataset)
            self._opened.clear()

    def add(self, problem: Problem) -> None:
        """Add a problem, unless another split had it already."""
        if problem not in self.problems:
            self.problems.append(problem)

    def _say(self, message: str) -> None:
        # The messages of metadatasets begin with file and place.
        self.add(Problem(path=self._metadataset.path, place="", message=_without(message, self._metadataset.path)))

    def _look_at(self, source: NamedSource | JoinedSource) -> None:
        found = list(_places(source))
        self.places += [place for place in found if place not in self.places]
        if isinstance(source, NamedSource):
            for name, aux in (source.aux or {}).items():
                if not _is_there(folder := aux.removeprefix(FILESYSTEM)):
                    self._say(f"{source.where}: aux.{name}: nothing is at {folder}")
        try:
            # This opens the source, and compares its subset and limits with the number of its samples.
            build(source, self._dataset, training=False, schedule=None)
        except StoreAwayError:
            raise
        except HeadraceError as error:
            self._say(str(error))
            self.unopened.update(path for path, _ in found)

    def _dataset(self, source: NamedSource | JoinedSource) -> Dataset:
        if source.where not in self._opened:
            dataset = self._open(source)
            self._opened[source.where] = dataset
            if isinstance(dataset, JoinedMediaDataset):
                self.joins += 1
                for problem in dataset.store.check():
                    self.add(problem)
        return self._opened[source.where]


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


def _without(message: str, path: str) -> str:
    return message.removeprefix(f"{path}: ")


Row = tuple[str, ...]


def _mix_section(numbers: MetadatasetDescription, root: NodeNumbers) -> Titled:
    length = "endless" if root.samples is None else f"{count(root.samples)} samples a pass"
    seen = ("seen", "epochs") if numbers.steps is not None else ()
    heads = ("", "weight", "times", "share", "samples", "tokens", *seen, "of")
    rows = list(_mix_rows(root, numbers))
    used = [at for at in range(len(heads)) if at == 0 or any(row[at] for row in rows)]
    cells = [tuple(row[at] for at in used) for row in (heads, *rows)]
    table = Tabular(cells[0], cells[1:], left=(0, len(used) - 1))
    return Titled(f"split {root.name}: {root.kind}, {length}", [table, *_schedules(root, "")])


def _mix_rows(
    node: NodeNumbers, numbers: MetadatasetDescription, first: str = "", rest: str = "", *, in_epochs: bool = False
) -> Iterator[Row]:
    """Yield a row for a node and those below it; the number of a child of a ``blend_epochized`` is its repetitions."""
    weight = "" if node.number is None else f"{node.number:g}"
    samples = "endless" if node.samples is None else count(node.samples)
    cells = [f"{node.share:.3%}", samples if node.limit is None else f"first {samples}"]
    cells.append("" if node.tokens is None else short(node.tokens).strip())
    if numbers.steps is not None:
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
        yield from _mix_rows(child, numbers, rest + branch, rest + line, in_epochs=node.kind == "blend_epochized")


def _schedules(node: NodeNumbers, path: str) -> Iterator[str]:
    place = f"{path}/{node.name}" if path else node.name
    for until, weights, ramp in node.schedule:
        shown = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        yield f"{place}: {'on' if until is None else f'until {until}'}{', moving to' if ramp else ''}: {shown}"
    for child in node.children:
        yield from _schedules(child, place)


class TriedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a mix, as it stands in the file and as it would be.

    Attributes:
        path: the names on the way to it; empty for the root.
        depth: how many nodes are above it.
        node: the node in the file.
        weight: the weight that it would have among the children of its parent; None where there is none to change.
        share: its share of the samples of the mix.
        samples: the samples of the budget that come from it.
        tokens: their tokens, where the tokens of an epoch are known.
        epochs: how often the budget goes through a source; None for nodes that mix others.
    """

    path: str
    depth: int
    node: NodeNumbers
    weight: float | None
    share: float
    samples: int
    tokens: int | None
    epochs: float | None


class TriedMix(Answer, frozen=True, kw_only=True):
    """One split of a metadataset with a budget and, where they were given, other weights."""

    path: str
    split: str
    budget_samples: int
    changed: dict[str, float]
    nodes: tuple[TriedNode, ...]
    """Depth first, the root first."""


def tried_mix(
    found: MetadatasetDescription,
    split: str,
    *,
    budget_samples: int | None = None,
    weights: Mapping[str, float] | None = None,
) -> TriedMix:
    """Return what a budget of samples takes from each source of a mix, with the weights of the file or with others.

    It is arithmetic on shares: in a run the counts deviate by less than 2 samples a source.

    Args:
        found: what `headrace.inspect.describe` says of the metadataset.
        split: the name of a split.
        budget_samples: the number of samples that are taken; by default those of one pass, or as many as all sources
            have together.
        weights: path of a node -> its weight, in place of that in the file.

    Raises:
        ConfigError: there is no such split, or no node with a weight at a path; or a number is below 0.

    Example:
        >>> from headrace import inspect
        >>> web, code = (
        ...     inspect.metadataset.NodeNumbers(name=name, kind="source", number=1, share=0.5, samples=100)
        ...     for name in ("web", "code")
        ... )
        >>> root = inspect.metadataset.NodeNumbers(
        ...     name="train", kind="blend", number=None, share=1.0, samples=None, children=(web, code)
        ... )
        >>> mix = inspect.MetadatasetDescription(
        ...     path="mix.yaml", splits={"train": root}, steps=None, global_batch_size=None
        ... )
        >>> tried = inspect.views.tried_mix(mix, "train", budget_samples=400, weights={"web": 3})
        >>> [(one.path, one.samples, one.epochs) for one in tried.nodes[1:]]
        [('web', 300, 3.0), ('code', 100, 1.0)]
    """
    if split not in found.splits:
        raise unknown_name(found.path, "split", split, found.splits)
    root = found.splits[split]
    given = dict(weights or {})
    if any(not 0 <= weight < float("inf") for weight in given.values()):
        raise ConfigError(f"weights are numbers of at least 0, found {given}")
    if budget_samples is None:
        budget_samples = root.samples if root.samples is not None else _held(root)
    if budget_samples < 0:
        raise ConfigError(f"a budget is at least 0 samples, found {budget_samples:,}")
    left = dict(given)
    nodes = tuple(_tried(root, "", 0, None, 1.0, budget_samples, left))
    if left:
        raise ConfigError(f"{found.path}: nothing with a weight is at {', '.join(map(repr, left))}")
    return TriedMix(path=found.path, split=split, budget_samples=budget_samples, changed=given, nodes=nodes)


def _held(node: NodeNumbers) -> int:
    return sum(map(_held, node.children)) if node.children else node.samples or 0


def _tried(
    node: NodeNumbers, path: str, depth: int, weight: float | None, share: float, budget: int, given: dict[str, float]
) -> list[TriedNode]:
    samples = round(share * budget)
    epochs = tokens = None
    if not node.children:
        epochs = samples / node.samples if node.samples else None
        tokens = None if node.tokens is None or not node.samples else round(node.tokens / node.samples * samples)
    found = [
        TriedNode(
            path=path, depth=depth, node=node, weight=weight, share=share, samples=samples, tokens=tokens, epochs=epochs
        )
    ]
    weights: list[float | None] = []
    parts: list[float] = []
    for child in node.children:
        place = f"{path}/{child.name}" if path else child.name
        base = child.share / node.share if node.share else 0.0
        if child.number is None:
            weights.append(None)
            parts.append(base)
            continue
        # In a blend with repeats a child's part goes with its samples, too; the change of its number scales it.
        weight = given.pop(place, child.number)
        weights.append(weight)
        parts.append(base * weight / child.number if child.number else weight)
    total = sum(parts)
    if node.children and not total:
        raise ConfigError(f"the weights below {path or 'the root'!r} are all 0: one of them must be above 0")
    for child, child_weight, part in zip(node.children, weights, parts, strict=True):
        place = f"{path}/{child.name}" if path else child.name
        found += _tried(child, place, depth + 1, child_weight, share * part / total, budget, given)
    tokens_below = [one.tokens for one in found[1:] if not one.node.children]
    if node.children and tokens_below and None not in tokens_below:
        found[0] = msgspec.structs.replace(found[0], tokens=sum(one or 0 for one in tokens_below))
    return found


def mix_paths(path: str) -> list[str]:
    """Return the paths of all datasets that a metadataset names, without opening them.

    Raises:
        HeadraceError: the file, or one that it names, cannot be read, or says something impossible.
    """
    metadataset = load_dataset(path)
    found: dict[str, None] = {}
    for split in metadataset.splits:
        for source in sources(metadataset.tree(split)):
            named = source.columns if isinstance(source, JoinedSource) else (source,)
            found |= dict.fromkeys(one.path for one in named)
    return list(found)
