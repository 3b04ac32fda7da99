"""Samples in tar shards, as webdataset and Energon read them.

    names      sample_part("a/0017.seg.png") -> ("a/0017", "seg.png")
    headers    parses the headers of a tar, without ``tarfile``
    index      x.tar.idx: where the samples of x.tar begin
    scan       scan_shard(x.tar) -> offsets, keys, parts, faults: one pass over the headers; walk_sample: one sample
    store      TarShards: samples by shard and number, with an index for each shard; TarStore: plain tars, a folder, a
               list or a pattern of them, whose missing indexes it makes
    writer     TarWriter: writes a shard and its index

A name in a tar is untrusted data: it becomes a key, never a path.
"""
