"""Faces for trainers that people use, one file a trainer. Nothing is imported here: import the face that you want.

    megatron         datasets, dataloaders          Megatron-LM: its own order, or any run as an external loader
    torchtitan       HeadraceDataLoader             torchtitan, by its `BaseDataLoader`

A face gives a trainer its batches from a `Run`, saves the state of the data in the trainer's own checkpoints, and goes
on after the last batch that the trainer consumed.

May import: all rooms but ``cli``. No room imports this one.
"""
