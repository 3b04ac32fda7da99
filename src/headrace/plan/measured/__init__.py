"""Sources whose facts were measured once: filters, generators, groups and packs, all in closed form.

    position ---- Plan ----> unit ---- Grouping, Packing ----> items ---- Facts ----> samples and outputs of the dataset
                                                                          filter, generator: sums of counts

An *item* is an output of a sample that the filter keeps; a *unit* is what a run reads as one sample: an item, a group
of items or a pack of them. The number of units is the number of samples of the leaf and the same in every epoch, so the
state of a run is still a position.

May import: plan, errors.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
