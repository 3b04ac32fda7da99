from headrace.plan.megatron.blending import (
    SURPLUS as SURPLUS,
    BlendSizes as BlendSizes,
    blend_sizes as blend_sizes,
    build_blending_indices as build_blending_indices,
    build_exhaustive_blending_indices as build_exhaustive_blending_indices,
    check_draws as check_draws,
    normalised_weights as normalised_weights,
    parse_blend as parse_blend,
)
from headrace.plan.megatron.fim import (
    Draws as Draws,
    FillInTheMiddle as FillInTheMiddle,
    FIMTokens as FIMTokens,
    KeyedDraws as KeyedDraws,
    TextCodec as TextCodec,
    fill_in_the_middle as fill_in_the_middle,
)
from headrace.plan.megatron.indices import (
    SamplePieces as SamplePieces,
    build_doc_idx as build_doc_idx,
    build_sample_idx as build_sample_idx,
    build_shuffle_idx as build_shuffle_idx,
)
from headrace.plan.megatron.order import (
    AlephAlphaOrder as AlephAlphaOrder,
    GPTOrder as GPTOrder,
    order_samples as order_samples,
)
from headrace.plan.megatron.sampling import (
    CyclicOrder as CyclicOrder,
    Epochs as Epochs,
    GPTSampling as GPTSampling,
    ReorderWarning as ReorderWarning,
    count_epochs as count_epochs,
    parse_split as parse_split,
    split_ranges as split_ranges,
)
from headrace.plan.torch_draws import torch_randperm as torch_randperm
