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
(`build_blending_indices`), the order of the cyclic sampler (`CyclicOrder`), fill in the middle (`fill_in_the_middle`),
and the three builders under their names in Megatron-LM (`build_doc_idx`, `build_sample_idx`, `build_shuffle_idx`).

Nothing here reads a file. The blends and the cyclic sampler go through their items one by one: they are
compiled with numba (extra ``fast``) if it is installed, and otherwise use NumPy or plain Python with the same results.

May import: errors, and from the plan its arrays and shares.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
