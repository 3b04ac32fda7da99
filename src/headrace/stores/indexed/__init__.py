"""Megatron's indexed datasets, a pair of ``.bin`` and ``.idx``, and the formats that share these names.

layout   the bytes of an ``.idx``, and who wrote it -> index   its arrays, read where they are needed
store    one pair as a store; stream, where its tokens lie; check, everything that is wrong with it
pairs    which format a pair is of: Megatron's, fairseq's older one, Aleph Alpha's
writer   the same bytes as Megatron's builder
"""
