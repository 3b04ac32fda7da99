"""Faces for trainers that bring a loop of their own, one file each. Nothing is imported before it is asked for.

    transformers    FromHeadrace: for the Trainer of Hugging Face, and TRL's; it iterates over `transformers_batches`
    stateful        StatefulLoader: a loader with epochs, for verl, NeMo-RL, OpenRLHF and whatever expects torchdata's
    torchtitan      HeadraceDataLoader: for torchtitan
    megatron        datasets, dataloaders: for Megatron-LM, in its own order or with any run as an external loader
    lightning       HeadraceDataModule: for Lightning's Trainer
    numpy           NumpyLoader: dicts of NumPy arrays, without torch, for JAX

Each takes a run, hands the trainer the batches of its ranks, and saves the state where the trainer keeps its own.

May import: all rooms but cli.
"""
