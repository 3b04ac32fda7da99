"""Energon's wrappers by their names: framed sources out of plain functions, without a task encoder.

    FilterDataset          a predicate: which samples there are            one of the other, in a row:
    IterMapDataset         none, one or several samples of each              PackingDataset(FilterDataset(...), ...)
    ShuffleBufferDataset   samples through a buffer
    GroupBatchDataset      batches of samples of one group
    PackingDataset         packs that a function selects
    BlendDataset, MixBatchDataset    several sources, by weight
    ConcatDataset, LimitDataset, RepeatDataset    `headrace.datasets` has them as Concat, Limit, Repeat

A function is marked with ``@stateless`` as a hook is. `headrace.MapDataset` needs no frames; it may stand within.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from inspect import isgenerator
from typing import Any, Final, Literal, NamedTuple

from headrace.datasets.blend import Blend
from headrace.datasets.dataset import Dataset
from headrace.datasets.encoded.framed import Framed
from headrace.datasets.lengths import Concat, Limit, Repeat
from headrace.datasets.mapped import MapDataset
from headrace.datasets.mix import Mix
from headrace.encoders import TaskEncoder, get_stateless
from headrace.encoders.task_encoder import may_draw
from headrace.errors import ConfigError, SkipSample
from headrace.plan.framed import ShuffleBuffer
from headrace.plan.recorded_names import recorded_name

ConcatDataset = Concat
LimitDataset = Limit
RepeatDataset = Repeat

_OPTIONS: Final = ("seed", "errors", "buffer_bytes", "most_empty_positions")


class Step(NamedTuple):
    """A function on the way of a sample."""

    kind: Literal["map", "filter", "iter"]
    function: Callable[..., Any]


class Steps:
    """Functions one after another, as one hook: a generator, which promises what all of them do."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps
        functions = [step.function for step in steps]
        self.__stateless__ = all(map(get_stateless, functions))
        self.__restore_seeds__ = any(map(may_draw, functions))

    def __call__(self, sample: Any) -> Iterator[Any]:
        """What becomes of a sample."""
        return self._from(sample, 0)

    def _from(self, sample: Any, number: int) -> Iterator[Any]:
        if number == len(self.steps):
            yield sample
            return
        for one in _results(self.steps[number], sample):
            yield from self._from(one, number + 1)


def _results(step: Step, sample: Any) -> Iterator[Any]:
    """What a function makes of one sample; `SkipSample` ends it, and not what others make."""
    try:
        if step.kind == "filter":
            found: Iterable[Any] = [sample] if step.function(sample) else []
        else:
            made = step.function(sample if step.kind == "map" else iter([sample]))
            found = made if step.kind == "iter" or isgenerator(made) else [made]
        yield from found
    except SkipSample:
        return


class FunctionEncoder(TaskEncoder[Any, Any, Any, Any]):
    """A task encoder whose hooks are functions. They are told from others by their modules and names.

    Args:
        steps: on the way of each sample.
        hooks: name -> function.
    """

    def __init__(self, steps: tuple[Step, ...], hooks: dict[str, Callable[..., Any]]) -> None:
        if steps:
            hooks = {"preencode_sample": Steps(steps), **hooks}
        for name, function in hooks.items():
            setattr(self, name, function)
        functions = [*steps, *(Step("map", hook) for name, hook in hooks.items() if name != "preencode_sample")]
        self.version = " ".join(f"{kind}:{recorded_name(function)}" for kind, function in functions)


class FunctionFramed(Framed):
    """What all of these are: `Framed` with a `FunctionEncoder`. One around another takes over its functions."""

    def __init__(
        self,
        dataset: Dataset | Mix | Framed,
        step: Step | None = None,
        *,
        hooks: dict[str, Callable[..., Any]] | None = None,
        **options: Any,
    ) -> None:
        for function in [*([] if step is None else [step.function]), *(hooks or {}).values()]:
            if not callable(function):
                raise ConfigError(f"{type(self).__name__}: expected a function, found {function!r:.80}")
        self.steps = () if step is None else (step,)
        self.has_units = bool(hooks) or "form" in options
        if isinstance(dataset, Framed):
            if not isinstance(dataset, FunctionFramed) or dataset.has_units:
                raise ConfigError(
                    f"{type(self).__name__} around {type(dataset).__name__}: what is grouped, packed or buffered is a"
                    " unit already; put the others within it, or write a task encoder with all hooks"
                )
            options = {**{name: getattr(dataset, name) for name in _OPTIONS}, **options}
            self.steps = (*dataset.steps, *self.steps)
            dataset = dataset.data
        while isinstance(dataset, MapDataset):
            self.steps = (Step("map", dataset.function), *self.steps)
            dataset = dataset.dataset
        super().__init__(dataset, FunctionEncoder(self.steps, hooks or {}), **options)


class FilterDataset(FunctionFramed):
    """The samples for which ``filter_fn`` is true."""

    def __init__(self, dataset: Dataset | Mix | Framed, filter_fn: Callable[[Any], bool], **options: Any) -> None:
        super().__init__(dataset, Step("filter", filter_fn), **options)


class IterMapDataset(FunctionFramed):
    """What ``iter_map_fn`` gives: it takes an iterator over samples and gives one.

    It is called for each sample on its own, so that nothing goes from one sample to another. In Energon it sees the
    whole stream of a worker, and what it keeps is lost on resume.
    """

    def __init__(
        self,
        dataset: Dataset | Mix | Framed,
        iter_map_fn: Callable[[Iterator[Any]], Iterable[Any]],
        **options: Any,
    ) -> None:
        super().__init__(dataset, Step("iter", iter_map_fn), **options)


class ShuffleBufferDataset(FunctionFramed):
    """Samples through a buffer of ``size`` in each lane. An order of the run shuffles better, and keeps nothing."""

    def __init__(self, dataset: Dataset | Mix | Framed, size: int, **options: Any) -> None:
        super().__init__(dataset, form=ShuffleBuffer(size), **options)


class GroupBatchDataset(FunctionFramed):
    """Batches of samples of one group, put together by ``batcher``.

    ``sample_group_key`` gives (group, size of its batches); the size is None where ``fixed_batch_size`` is given.
    """

    def __init__(
        self,
        dataset: Dataset | Mix | Framed,
        fixed_batch_size: int | None,
        sample_group_key: Callable[[Any], tuple[Hashable, int | None]],
        batcher: Callable[[list[Any]], Any],
        **options: Any,
    ) -> None:
        hooks = {"batch_group_criterion": sample_group_key, "batch": batcher}
        super().__init__(dataset, hooks=hooks, batch_size=fixed_batch_size, **options)


class PackingDataset(FunctionFramed):
    """Packs: ``pre_packer`` selects among the samples of a frame, ``final_packer`` makes one of each selection.

    What is not selected waits for the next frame; Energon drops it. ``buffer_size`` is the number of positions of a
    frame; ``sample_encoder`` is run for the samples of a pack before it is made.
    """

    def __init__(
        self,
        dataset: Dataset | Mix | Framed,
        buffer_size: int,
        pre_packer: Callable[[list[Any]], list[list[Any]]],
        final_packer: Callable[[list[Any]], Any],
        *,
        sample_encoder: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        hooks = {"select_samples_to_pack": pre_packer, "pack_selected_samples": final_packer}
        if sample_encoder is not None:
            hooks["postencode_sample"] = sample_encoder
        super().__init__(dataset, hooks=hooks, frame_positions=buffer_size, **options)


class MixBatchDataset(Blend):
    """A batch holds samples of all sources: what `headrace.Blend` does.

    Energon draws the sources; here each step keeps to the weights within 2 samples, and which of its samples make one
    micro-batch is drawn. How unlike samples become one batch is up to what collates them.
    """


class BlendDataset(Blend):
    """The source is chosen for ``block_samples`` consecutive samples, so that every micro-batch is of one source.

    It is `headrace.Blend` with these blocks.

    Args:
        children: as of `Blend`.
        block_samples: B, at least 1.
        options: those of `Blend`.
    """

    def __init__(self, children: Mapping[str, Dataset | Mix], *, block_samples: int, **options: Any) -> None:
        super().__init__(children, block_samples=block_samples, **options)
