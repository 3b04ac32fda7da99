"""Samples in tar shards, as webdataset and Energon read them.

    members    parses the headers of a tar, without ``tarfile``; sample_part("a/0017.seg.png") -> ("a/0017", "seg.png");
               walk_samples: keys and parts between entries of an index
    scan       scan_shard(x.tar) -> offsets, keys, parts, faults: one pass over the headers
    index      finds tars, and x.tar.idx: where the samples of x.tar begin
    store      TarShards: samples by shard and number, with an index for each shard; TarStore: plain tars, a folder, a
               list or a pattern of them, whose missing indexes it makes
    writer     TarWriter: writes a shard and its index

A name in a tar is untrusted data: it becomes a key, never a path.
"""
