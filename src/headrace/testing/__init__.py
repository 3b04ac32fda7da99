"""Contracts: test classes that every implementation of a face passes, and strategies that make its data.

    readers.ReaderContract      every reader of `headrace.io`
    stores.StoreContract        every store of tokens
    samples.SampleStoreContract every store of samples
    strategies                  documents, for hypothesis

A new format inherits the contract, says how its documents are written and opened, and is tested:

    class TestMyStore(StoreContract):
        def write(self, folder, documents): ...
        def open(self, path): ...

Tests only: the modules import pytest and hypothesis, this one does not. May import every room.
"""
