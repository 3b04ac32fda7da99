"""Megatron's indexed datasets, a pair of ``.bin`` and ``.idx``, and the formats that share these names.

layout   the bytes of an ``.idx``, and which program wrote it
index    the arrays of an ``.idx``, of which only the needed parts are read, and where the tokens of the stream lie
store    one pair as a store, and everything that is wrong with a pair
pairs    recognises the format of a pair: Megatron's, fairseq's older one, Aleph Alpha's
writer   writes the same bytes as Megatron's builder
"""
