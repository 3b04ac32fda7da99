"""Contracts: test classes that every implementation of an interface passes, and data for them.

    readers.ReaderContract          for every reader of `headrace.io`
    stores.StoreContract            for every store of tokens; also hypothesis strategies that make documents
    samples.SampleStoreContract     for every store of samples
    work.WorkContract               for every kind of offline work; also workers inside the process of the test
    damage                          damages a file, and takes the damage back

To test a new format, inherit its contract and say how documents are written and opened:

    class TestMyStore(StoreContract):
        def write(self, folder, documents): ...
        def open(self, path): ...

and to test a kind of work, how it is planned:

    class TestMyWork(WorkContract):
        def plan(self, output): ...

The modules are for tests: they import pytest and hypothesis, which this file does not. This package may import every
other one.
"""
