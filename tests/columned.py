"""Loaders of the Energon face whose batches are columns with the positions of their samples."""

from __future__ import annotations

from functools import partial

from headrace.compat.energon import get_savable_loader as made

get_savable_loader = partial(made, as_columns=True)
get_loader = get_savable_loader
