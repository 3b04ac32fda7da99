"""Headrace feeds training runs: raw text and media in; shuffled, blended batches out, exactly resumable.

    headrace.prepare                           turns text, records or media into a store; more in headrace.preparing
    headrace.open                              opens an existing store, ours or another system's
    headrace.WindowDataset, SFTDataset, ...    make samples from a store; more in headrace.datasets
    headrace.Blend, Order, Run                 mix sources, order their samples, and say which make step N
    headrace.Loader                            yields the batches of this rank as torch tensors, resumable
    headrace.NumpyLoader                       yields them as NumPy arrays, without torch
    headrace.inspect                           describes, checks and shows what is on disk, as the commands do
    headrace.compat                            the names of Megatron, Energon, torchtune and AstrAI

Names and sub-packages are loaded when they are first used: ``import headrace`` imports neither torch nor any other
heavy package.
"""

from headrace._lazy import PROVIDED, face

PROVIDED.update(load_run="headrace.tracing.sources:load_run", account="headrace.tracing:account")
__getattr__, __dir__, __all__ = face(__name__)
