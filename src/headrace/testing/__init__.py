"""Contracts: test classes that every implementation of an interface passes, and data for them.

    readers.ReaderContract          for every reader of `headrace.io`
    stores.StoreContract            for every store of tokens; also hypothesis strategies that make documents
    samples.SampleStoreContract     for every store of samples
    shards                          writes shards of the indexed and the keyed format, valid or not
    damage                          damages files in many ways, and takes the damage back

To test a new format, inherit its contract and say how documents are written and opened:

    class TestMyStore(StoreContract):
        def write(self, folder, documents): ...
        def open(self, path): ...

The modules are for tests: they import pytest and hypothesis, which this file does not. This package may import every
other one.
"""
