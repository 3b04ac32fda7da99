"""A task encoder that maps fields by their names."""

from __future__ import annotations

from typing import Any

from headrace.encoders.mapping import batched, fields_of, made
from headrace.encoders.stateless import stateless
from headrace.encoders.task_encoder import T_batch, T_encoded_sample, T_raw_batch, T_sample, TaskEncoder


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Makes samples, then batches, of the types that are given; where none is, they stay as they are.

    A type is a dataclass, a named tuple or ``dict``. Fields that it lacks are left out, and one that it needs must be
    there under its name.

    Args:
        encoded_sample_type: of ``encode_sample``.
        raw_batch_type: of ``batch``; None: that of the samples.
        batch_type: of ``encode_batch``.
    """

    def __init__(
        self,
        *,
        encoded_sample_type: type[Any] | None = None,
        raw_batch_type: type[Any] | None = None,
        batch_type: type[Any] | None = None,
    ) -> None:
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type
        self._batch_type = batch_type

    @stateless(restore_seeds=())
    def encode_sample(self, sample: T_sample) -> Any:
        """The sample as ``encoded_sample_type``."""
        kind = self._encoded_sample_type
        return sample if kind is None or isinstance(sample, kind) else made(kind, fields_of(sample), "encode_sample")

    @stateless(restore_seeds=())
    def batch(self, samples: list[Any]) -> Any:
        """The samples as ``raw_batch_type``: see `batched`."""
        return batched(samples, self._raw_batch_type or type(samples[0]))

    @stateless(restore_seeds=())
    def encode_batch(self, batch: T_raw_batch) -> Any:
        """The batch as ``batch_type``."""
        kind = self._batch_type
        return batch if kind is None or isinstance(batch, kind) else made(kind, fields_of(batch), "encode_batch")
