"""The loader: the micro-batches of one rank as torch tensors, read ahead and resumable. The only room that needs torch.

    Run --> spans (planned in bulk) --> threads or workers read --> micro-batches, in order --> your training step
                                                                          |
                                                     Loader.state_dict() after any of them

`Prompts` dispatches the prompts of a run for reinforcement learning, and knows what became of each.

For packed samples the room also makes what attention needs: masks, FlexAttention's block masks, varlen arguments, the
parts of context-parallel ranks, and the padding-free layouts of Hugging Face. `collate_fn` makes the same batches for a
torch ``DataLoader``.

May import: cache, datasets, encoders (faults), engine (forks), plan, io, errors; and torch.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    from headrace.errors import MissingExtraError

    raise MissingExtraError("the loader needs torch: pip install 'headrace[torch]'") from error

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.encoders import read_fault_report
    from headrace.loader.attention import (
        block_causal_mask,
        context_parallel,
        flatten,
        flatten_packed,
        flex_block_mask,
        mask_mod,
        varlen_arguments,
    )
    from headrace.loader.balancing import Balance, Dealing, StepBalance, StepDealing
    from headrace.loader.collating import collate_fn
    from headrace.loader.data_loader import DataLoader, EpochsAccount
    from headrace.loader.faults import FeedLedger
    from headrace.loader.framed import merge_state_dicts
    from headrace.loader.loader import Loader, load_recipe
    from headrace.loader.metrics import Metrics
    from headrace.loader.prompts import DispatchedPrompt, PromptAccount, Prompts
    from headrace.loader.ranks import Ranks
    from headrace.loader.reading import Reading
    from headrace.loader.shortcut import loader_for

_HOMES = {
    "Balance": "headrace.loader.balancing",
    "Dealing": "headrace.loader.balancing",
    "DataLoader": "headrace.loader.data_loader",
    "DispatchedPrompt": "headrace.loader.prompts",
    "EpochsAccount": "headrace.loader.data_loader",
    "FeedLedger": "headrace.loader.faults",
    "Loader": "headrace.loader.loader",
    "Metrics": "headrace.loader.metrics",
    "PromptAccount": "headrace.loader.prompts",
    "Prompts": "headrace.loader.prompts",
    "Ranks": "headrace.loader.ranks",
    "Reading": "headrace.loader.reading",
    "StepBalance": "headrace.loader.balancing",
    "StepDealing": "headrace.loader.balancing",
    "block_causal_mask": "headrace.loader.attention",
    "collate_fn": "headrace.loader.collating",
    "context_parallel": "headrace.loader.attention",
    "flatten": "headrace.loader.attention",
    "flatten_packed": "headrace.loader.attention",
    "flex_block_mask": "headrace.loader.attention",
    "load_recipe": "headrace.loader.loader",
    "loader_for": "headrace.loader.shortcut",
    "mask_mod": "headrace.loader.attention",
    "merge_state_dicts": "headrace.loader.framed",
    "read_fault_report": "headrace.encoders",
    "varlen_arguments": "headrace.loader.attention",
}

__all__ = [
    "Balance",
    "DataLoader",
    "Dealing",
    "DispatchedPrompt",
    "EpochsAccount",
    "FeedLedger",
    "Loader",
    "Metrics",
    "PromptAccount",
    "Prompts",
    "Ranks",
    "Reading",
    "StepBalance",
    "StepDealing",
    "block_causal_mask",
    "collate_fn",
    "context_parallel",
    "flatten",
    "flatten_packed",
    "flex_block_mask",
    "load_recipe",
    "loader_for",
    "mask_mod",
    "merge_state_dicts",
    "read_fault_report",
    "varlen_arguments",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
