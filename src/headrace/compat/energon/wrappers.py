"""Energon's wrappers under their names: framed sources from plain functions, without a task encoder.

    FilterDataset          keeps the samples for which a function is true
    IterMapDataset         makes zero or more samples of each
    ShuffleBufferDataset   passes samples through a shuffle buffer
    GroupBatchDataset      makes batches of samples of one group
    PackingDataset         makes packs that a function selects
    BlendDataset, MixBatchDataset    mix several sources by weight

Wrappers can be nested: ``PackingDataset(FilterDataset(...), ...)``. Functions are marked with ``@stateless``, as hooks
are. `headrace.MapDataset` needs no frames, and can be wrapped too.

Geometric transforms of images, merged into one: each pixel is sampled once, whatever the number of transforms.

    MergeTransform([T.RandomRotation(30), T.RandomPerspective()])(image)
      each transform draws its parameters as torchvision does, and becomes a matrix, source -> result
      the product of the matrices is applied in one resampling

Pillow images only. Matrices map (x, y, 1) in continuous coordinates, where pixel (0, 0) has its centre at (0.5, 0.5).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from inspect import isgenerator
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.datasets import Blend, Dataset, MapDataset, Mix
from headrace.datasets.encoded import Framed
from headrace.encoders import TaskEncoder, get_stateless
from headrace.encoders.task_encoder import may_draw
from headrace.errors import ConfigError, SkipSample, load_extra
from headrace.plan.framed import ShuffleBuffer
from headrace.plan.measured import Grouping
from headrace.plan.recipe import recorded_name

Matrix = NDArray[Any]

Transformed = tuple[Matrix, NDArray[np.int64], Any]
"""The matrix up to here, the size (height, width) of the result, and what was drawn."""


class CustomTransform(ABC):
    """A transform of the user's, for `MergeTransform`: override ``apply_transform``."""

    @abstractmethod
    def apply_transform(self, matrix: Matrix, dst_size: NDArray[np.int64]) -> Transformed:
        """Return the matrix with this transform after it, the new size (height, width), and what was drawn."""

    @staticmethod
    def translate(x: float, y: float) -> Matrix:
        """Move to the right and down, in pixels."""
        return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], dtype=np.float64)

    @staticmethod
    def scale(x: float, y: float) -> Matrix:
        """Multiply the axes."""
        return np.array([[x, 0, 0], [0, y, 0], [0, 0, 1]], dtype=np.float64)

    @staticmethod
    def rotate(angle: float) -> Matrix:
        """Rotate around the origin by an angle in radians, x towards y."""
        cos, sin = math.cos(angle), math.sin(angle)
        return np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]], dtype=np.float64)


class MergeTransform(torch.nn.Module):
    """Several `CustomTransform` s, or torchvision's ``RandomRotation`` and ``RandomPerspective``, as one resampling.

    Parameters are drawn as by torchvision. Pixels outside the image are black. The result is bilinear if any transform
    is not nearest.

    Args:
        transforms: at least one.

    Raises:
        ConfigError: a transform is not one of these.
        MissingExtraError: torchvision is not installed.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__()
        advice = "MergeTransform needs torchvision: pip install torchvision"
        self._known: Any = load_extra("torchvision.transforms", advice)
        self.transforms = list(transforms)
        for one in self.transforms:
            if not isinstance(one, CustomTransform) and not hasattr(self, f"_{type(one).__name__}"):
                raise ConfigError(
                    f"MergeTransform: {type(one).__name__} is not one of RandomRotation, RandomPerspective; apply it by"
                    " itself, or derive a CustomTransform"
                )

    def forward(self, image: Any) -> Any:
        """Return the transformed Pillow image. Raises ConfigError for anything else."""
        from PIL import Image

        if not isinstance(image, Image.Image):
            raise ConfigError(
                f"MergeTransform transforms Pillow images, found {image!r:.80}; decode with image_decode='pil'"
            )
        matrix: Matrix = np.eye(3)
        size = np.array([image.height, image.width], dtype=np.int64)
        for one in self.transforms:
            of = one.apply_transform if isinstance(one, CustomTransform) else self._by(one)
            matrix, size, _ = of(matrix, size)
        inverse = np.linalg.inv(matrix)
        inverse /= inverse[2, 2]
        how = Image.Resampling.BILINEAR if any(map(self._is_smooth, self.transforms)) else Image.Resampling.NEAREST
        to = (int(size[1]), int(size[0]))
        if not inverse[2, :2].any():
            return image.transform(to, Image.Transform.AFFINE, inverse.ravel()[:6].tolist(), how)
        return image.transform(to, Image.Transform.PERSPECTIVE, inverse.ravel()[:8].tolist(), how)

    def _by(self, one: Any) -> Any:
        function = getattr(self, f"_{type(one).__name__}")
        return lambda matrix, size: function(one, matrix, size)

    def _is_smooth(self, one: Any) -> bool:
        mode = getattr(one, "interpolation", None)
        return mode is not None and mode is not self._known.InterpolationMode.NEAREST

    def _RandomRotation(self, one: Any, matrix: Matrix, size: NDArray[np.int64]) -> Transformed:  # noqa: N802
        angle = one.get_params(one.degrees)
        height, width = int(size[0]), int(size[1])
        center = (width / 2.0, height / 2.0) if one.center is None else tuple(one.center)
        about = CustomTransform.translate(*center)
        # Pillow rotates counter-clockwise, and y points down.
        forward = about @ CustomTransform.rotate(-math.radians(angle)) @ np.linalg.inv(about)
        if one.expand:
            corners = forward @ np.array([[0, width, width, 0], [0, 0, height, height], [1, 1, 1, 1]])
            new = [math.ceil(max(axis)) - math.floor(min(axis)) for axis in np.round(corners[:2], 9)]
            forward = CustomTransform.translate((new[0] - width) / 2.0, (new[1] - height) / 2.0) @ forward
            size = np.array([new[1], new[0]], dtype=np.int64)
        return forward @ matrix, size, angle

    def _RandomPerspective(self, one: Any, matrix: Matrix, size: NDArray[np.int64]) -> Transformed:  # noqa: N802
        if not torch.rand(1) < one.p:
            return matrix, size, None
        height, width = int(size[0]), int(size[1])
        begins, ends = one.get_params(width, height, one.distortion_scale)
        coefficients = self._known.functional._get_perspective_coeffs(begins, ends)
        inverse = np.array([*coefficients, 1.0]).reshape(3, 3)
        return np.linalg.inv(inverse) @ matrix, size, (begins, ends)


_OPTIONS: Final = ("seed", "errors", "buffer_bytes", "most_empty_positions")


class Step(NamedTuple):
    """A function that is applied to each sample."""

    kind: Literal["map", "filter", "iter"]
    function: Callable[..., Any]


class Steps:
    """Several functions, applied one after another, as one generator hook.

    The hook is stateless if all functions are, and draws random numbers if any function may.
    """

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps
        functions = [step.function for step in steps]
        self.__stateless__ = all(map(get_stateless, functions))
        self.__restore_seeds__ = any(map(may_draw, functions))

    def __call__(self, sample: Any) -> Iterator[Any]:
        """Yield the results of all steps for one sample."""
        return self._from(sample, 0)

    def _from(self, sample: Any, number: int) -> Iterator[Any]:
        if number == len(self.steps):
            yield sample
            return
        for result in _results(self.steps[number], sample):
            yield from self._from(result, number + 1)


def _results(step: Step, sample: Any) -> Iterator[Any]:
    """The results of one step for one sample. `SkipSample` ends the results of this step only."""
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
    """A task encoder whose hooks are plain functions. Its version consists of their modules and names.

    Args:
        steps: the functions that are applied to each sample.
        hooks: the functions of other hooks, by the name of the hook.
    """

    def __init__(self, steps: tuple[Step, ...], hooks: dict[str, Callable[..., Any]]) -> None:
        if steps:
            hooks = {"preencode_sample": Steps(steps), **hooks}
        for name, function in hooks.items():
            setattr(self, name, function)
        functions = [*steps, *(Step("map", hook) for name, hook in hooks.items() if name != "preencode_sample")]
        self.version = " ".join(f"{kind}:{recorded_name(function)}" for kind, function in functions)


class FunctionFramed(Framed):
    """The base of the wrappers: a `Framed` with a `FunctionEncoder`. A wrapper around another takes over its steps."""

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
                    f"{type(self).__name__} around {type(dataset).__name__}: samples that are grouped, packed or"
                    f" buffered are units already; put {type(self).__name__} inside, or write a task encoder with all"
                    " hooks"
                )
            options = {**{name: getattr(dataset, name) for name in _OPTIONS}, **options}
            self.steps = (*dataset.steps, *self.steps)
            dataset = dataset.data
        while isinstance(dataset, MapDataset):
            self.steps = (Step("map", dataset.function), *self.steps)
            dataset = dataset.dataset
        super().__init__(dataset, FunctionEncoder(self.steps, hooks or {}), **options)


class FilterDataset(FunctionFramed):
    """The samples for which ``filter_fn`` returns True.

    Example:
        >>> captions = headrace.MediaDataset.open("shards", "train")
        >>> kept = headrace.compat.energon.FilterDataset(captions, lambda sample: len(sample.caption) < 200)
        >>> run = headrace.FramedRun(kept, global_batch_size=4)
    """

    def __init__(self, dataset: Dataset | Mix | Framed, filter_fn: Callable[[Any], bool], **options: Any) -> None:
        super().__init__(dataset, Step("filter", filter_fn), **options)


class IterMapDataset(FunctionFramed):
    """The samples that ``iter_map_fn`` yields; it accepts an iterator over samples and returns one.

    The function is called separately for each sample, so it cannot carry anything from one sample to the next. In
    Energon it receives the whole stream of a worker, and what it keeps is lost on resume.

    Example:
        >>> captions = headrace.MediaDataset.open("shards", "train")
        >>> twice = headrace.compat.energon.IterMapDataset(
        ...     captions, lambda samples: (sample for sample in samples for _ in range(2))
        ... )
        >>> run = headrace.FramedRun(twice, global_batch_size=4)
    """

    def __init__(
        self,
        dataset: Dataset | Mix | Framed,
        iter_map_fn: Callable[[Iterator[Any]], Iterable[Any]],
        **options: Any,
    ) -> None:
        super().__init__(dataset, Step("iter", iter_map_fn), **options)


class ShuffleBufferDataset(FunctionFramed):
    """Samples that pass through a shuffle buffer of ``size`` samples in each lane.

    The order of a run shuffles better, and needs no buffer.

    Example:
        >>> captions = headrace.MediaDataset.open("shards", "train")
        >>> buffered = headrace.compat.energon.ShuffleBufferDataset(captions, size=8)
        >>> run = headrace.FramedRun(buffered, global_batch_size=4)
    """

    def __init__(self, dataset: Dataset | Mix | Framed, size: int, **options: Any) -> None:
        super().__init__(dataset, form=ShuffleBuffer(size), **options)


class GroupBatchDataset(FunctionFramed):
    """Batches of samples of one group, which ``batcher`` makes.

    ``sample_group_key`` returns the group of a sample and the size of the group's batches. The size is None if
    ``fixed_batch_size`` is given.

    Example:
        >>> captions = headrace.MediaDataset.open("shards", "train")
        >>> groups = headrace.compat.energon.GroupBatchDataset(
        ...     captions, 4, lambda sample: (sample.image.shape, None), list
        ... )
        >>> run = headrace.FramedRun(groups, global_batch_size=2)
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
        super().__init__(dataset, hooks=hooks, form=Grouping(size=fixed_batch_size), **options)


class PackingDataset(FunctionFramed):
    """Packs: ``pre_packer`` selects among the samples of a frame, and ``final_packer`` makes a pack of each selection.

    Samples that are not selected wait for the next frame; Energon drops them. ``buffer_size`` is the number of
    positions of a frame. ``sample_encoder`` is applied to the samples of a pack before the pack is made.

    Example:
        >>> def pairs(samples):
        ...     return [samples[number : number + 2] for number in range(0, len(samples), 2)]
        >>> captions = headrace.MediaDataset.open("shards", "train")
        >>> packs = headrace.compat.energon.PackingDataset(captions, 10, pairs, list)
        >>> run = headrace.FramedRun(packs, global_batch_size=2)
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
    """A `headrace.Blend`, whose batches hold samples of all sources.

    Energon draws the source of each sample. Here each step follows the weights within 2 samples, and only the division
    of its samples into micro-batches is drawn. The function that collates samples must be able to combine samples of
    different sources.

    Example:
        >>> web = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> code = headrace.WindowDataset(headrace.open("stores/code"), seq_len=128)
        >>> mix = headrace.compat.energon.MixBatchDataset(
        ...     {"web": web, "code": code}, weights={"web": 3, "code": 1}
        ... )
        >>> headrace.Run(mix, global_batch_size=16).step(0)["input_ids"].shape
        (16, 128)
    """


class BlendDataset(Blend):
    """A `headrace.Blend` that chooses a source for ``block_samples`` samples at a time.

    So every micro-batch holds samples of one source.

    Args:
        children: as for `headrace.Blend`.
        block_samples: the number of consecutive samples of one source, at least 1.
        options: the other arguments of `headrace.Blend`.

    Example:
        >>> web = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> code = headrace.WindowDataset(headrace.open("stores/code"), seq_len=128)
        >>> blend = headrace.compat.energon.BlendDataset(
        ...     {"web": web, "code": code}, weights={"web": 3, "code": 1}, block_samples=4
        ... )
        >>> len(headrace.Run(blend, global_batch_size=16).step(0)["input_ids"])
        16
    """

    def __init__(self, children: Mapping[str, Dataset | Mix], *, block_samples: int, **options: Any) -> None:
        super().__init__(children, block_samples=block_samples, **options)
