"""A task encoder around another."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from headrace.encoders.task_encoder import T_batch, T_encoded_sample, T_raw_batch, T_sample, TaskEncoder
from headrace.samples.media import Cooker


class AugmentTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Does what another task encoder does; override a hook and call ``super()`` to add to it.

    A hook that is not overridden is the other's own, with what it promises. Energon's class hands on three hooks only.

    Args:
        task_encoder: the other.
    """

    def __init__(self, task_encoder: TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]) -> None:
        self._task_encoder = task_encoder
        kinds = type(self).__mro__
        own = {name for kind in kinds[: kinds.index(AugmentTaskEncoder)] for name in vars(kind)}
        for name in ("cookers", "decoder", "version"):
            if name not in own:
                setattr(self, name, getattr(task_encoder, name))

    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: Mapping[str, Any]) -> Any:
        """The other's."""
        return self._task_encoder.cook_crude_sample(sample, cooker, aux)

    def encode_sample(self, sample: T_sample) -> Any:
        """The other's."""
        return self._task_encoder.encode_sample(sample)

    def preencode_sample(self, sample: T_sample) -> Any:
        """The other's."""
        return self._task_encoder.preencode_sample(sample)

    def postencode_sample(self, sample: Any) -> Any:
        """The other's."""
        return self._task_encoder.postencode_sample(sample)

    def sample_length(self, sample: Any) -> int:
        """The other's."""
        return self._task_encoder.sample_length(sample)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """The other's."""
        return self._task_encoder.select_samples_to_pack(samples)

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """The other's."""
        return self._task_encoder.pack_selected_samples(samples)

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        """The other's."""
        return self._task_encoder.batch_group_criterion(sample)

    def batch(self, samples: list[Any]) -> Any:
        """The other's."""
        return self._task_encoder.batch(samples)

    def encode_batch(self, batch: T_raw_batch) -> Any:
        """The other's."""
        return self._task_encoder.encode_batch(batch)
