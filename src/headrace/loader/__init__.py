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

from headrace._lazy import face

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    from headrace import errors as _errors

    raise _errors.MissingExtraError("the loader needs torch: pip install 'headrace[torch]'") from error

__getattr__, __dir__, __all__ = face(__name__)
