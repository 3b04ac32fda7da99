"""Megatron's order as pure arithmetic: which tokens sample i of a run is, equal to Megatron's to the last element.

    sizes of the sequences of a split ----+
    GPTSampling (length, samples, seed) --+--> Epochs: how many epochs, is the last one separate, how many samples
                                          |
                       RandomState(seed) -+--> document_index   shuffled, int32, with sums every 16 entries: stored
                                          |    sample_index     closed form: computed where it is asked for
                                          +--> shuffle_index    shuffled, uint32: stored
    sample i -> shuffle_index -> tokens [j * S, j * S + S + 1) of the stream -> SamplePieces (sequence, offset, length)

A *piece* is a run of tokens in one sequence that belongs to one sample; a sample consists of one piece or more.

The room also holds the sequences of each split (`split_ranges`), the dataset of each sample in a blend
(`build_blending_indices`), the samples of each rank (`single_batches`, `cyclic_batches`), the cyclic order for any
number of ranks (`CyclicOrder`), fill in the middle (`fill_in_the_middle`), and the three builders under their names in
Megatron-LM (`build_doc_idx`, `build_sample_idx`, `build_shuffle_idx`).

Nothing here reads a file. The shuffles, the blends and the cyclic sampler go through their items one by one: they are
compiled with numba (extra ``fast``) if it is installed, and otherwise use NumPy or plain Python with the same results.

May import: errors, and from the plan its arrays and shares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import homes, lazily

if TYPE_CHECKING:
    from headrace.plan.megatron.blending import (
        SURPLUS,
        BlendSizes,
        blend_sizes,
        build_blending_indices,
        build_exhaustive_blending_indices,
        check_draws,
        normalised_weights,
        parse_blend,
    )
    from headrace.plan.megatron.fim import Draws, FillInTheMiddle, FIMTokens, KeyedDraws, TextCodec, fill_in_the_middle
    from headrace.plan.megatron.indices import (
        SamplePieces,
        build_doc_idx,
        build_sample_idx,
        build_shuffle_idx,
        document_index,
        sample_index,
        shuffle_index,
    )
    from headrace.plan.megatron.order import AlephAlphaOrder, GPTOrder, SampleOrder, order_samples
    from headrace.plan.megatron.samplers import CyclicOrder, cyclic_batches, single_batches
    from headrace.plan.megatron.sampling import (
        Epochs,
        GPTSampling,
        ReorderWarning,
        count_epochs,
        parse_split,
        reorders_when_extended,
        split_ranges,
    )
    from headrace.plan.torch_draws import torch_randperm

_HOMES = homes(
    {
        "headrace.plan.megatron.blending": "SURPLUS BlendSizes blend_sizes build_blending_indices "
        "build_exhaustive_blending_indices check_draws normalised_weights parse_blend",
        "headrace.plan.megatron.fim": "Draws FIMTokens FillInTheMiddle KeyedDraws TextCodec fill_in_the_middle",
        "headrace.plan.megatron.indices": "SamplePieces build_doc_idx build_sample_idx build_shuffle_idx "
        "document_index sample_index shuffle_index",
        "headrace.plan.megatron.order": "AlephAlphaOrder GPTOrder SampleOrder order_samples",
        "headrace.plan.megatron.samplers": "CyclicOrder cyclic_batches single_batches",
        "headrace.plan.megatron.sampling": "Epochs GPTSampling ReorderWarning count_epochs parse_split "
        "reorders_when_extended split_ranges",
        "headrace.plan.torch_draws": "torch_randperm",
    }
)

__all__ = [
    "SURPLUS",
    "AlephAlphaOrder",
    "BlendSizes",
    "CyclicOrder",
    "Draws",
    "Epochs",
    "FIMTokens",
    "FillInTheMiddle",
    "GPTOrder",
    "GPTSampling",
    "KeyedDraws",
    "ReorderWarning",
    "SampleOrder",
    "SamplePieces",
    "TextCodec",
    "blend_sizes",
    "build_blending_indices",
    "build_doc_idx",
    "build_exhaustive_blending_indices",
    "build_sample_idx",
    "build_shuffle_idx",
    "check_draws",
    "count_epochs",
    "cyclic_batches",
    "document_index",
    "fill_in_the_middle",
    "normalised_weights",
    "order_samples",
    "parse_blend",
    "parse_split",
    "reorders_when_extended",
    "sample_index",
    "shuffle_index",
    "single_batches",
    "split_ranges",
    "torch_randperm",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
