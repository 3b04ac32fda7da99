from headrace.encoders import read_fault_report as read_fault_report
from headrace.loader.attention import (
    block_causal_mask as block_causal_mask,
    context_parallel as context_parallel,
    flatten as flatten,
    flatten_packed as flatten_packed,
    flex_block_mask as flex_block_mask,
    mask_mod as mask_mod,
    varlen_arguments as varlen_arguments,
)
from headrace.loader.balancing import (
    Balance as Balance,
    Dealing as Dealing,
    StepBalance as StepBalance,
    StepDealing as StepDealing,
)
from headrace.loader.collating import collate_fn as collate_fn
from headrace.loader.data_loader import DataLoader as DataLoader, EpochsAccount as EpochsAccount
from headrace.loader.faults import FeedLedger as FeedLedger
from headrace.loader.framed import merge_state_dicts as merge_state_dicts
from headrace.loader.loader import Loader as Loader, load_recipe as load_recipe
from headrace.loader.metrics import Metrics as Metrics
from headrace.loader.prompts import (
    DispatchedPrompt as DispatchedPrompt,
    PromptAccount as PromptAccount,
    Prompts as Prompts,
)
from headrace.loader.ranks import Ranks as Ranks
from headrace.loader.reading import Reading as Reading
from headrace.loader.shortcut import loader_for as loader_for
