"""Samples as one batch by the hooks of a task encoder, and what is said where they fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.datasets.encoded.columns import columns_of
from headrace.encoders import EncoderPipeline, HookFailure, Place
from headrace.errors import ConfigError, SkipSample


def one_batch(
    pipeline: EncoderPipeline, samples: Sequence[Any], place: Place, key: Any, *, kind: str, instead: str
) -> dict[str, Any]:
    """The columns of a batch that begins with a sample at ``place``, with the restore ``key``.

    ``kind`` of source it is for, and what to do ``instead`` of leaving a batch out, are for messages.

    Raises:
        ConfigError: `SkipSample`; another number of batches than one; a batch without fields.
    """
    pipeline.check_thread()
    encoder = type(pipeline.encoder).__name__
    try:
        batches = pipeline.batch(samples, place)
    except HookFailure as failure:
        error = failure.error
        where = f"in {failure.hook.name} of {encoder}: the batch that begins with {key!r}"
        if isinstance(error, SkipSample):
            raise ConfigError(f"SkipSample {where}: {kind} cannot leave a batch out; {instead}") from error
        error.add_note(where)
        raise error from error.__cause__
    if len(batches) != 1:
        raise ConfigError(
            f"{encoder}.encode_batch gave {len(batches)} batches; {kind} takes exactly one: return it, or give several"
            " outputs of a sample in encode_sample"
        )
    return columns_of(batches[0], encoder)


def raised(failure: HookFailure, encoder: str, of: str) -> Exception:
    """The error of a hook, with a note that says where it was."""
    failure.error.add_note(f"in {failure.hook.name} of {encoder}: {of}")
    return failure.error
