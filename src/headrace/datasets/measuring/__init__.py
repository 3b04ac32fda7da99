"""Measuring: what a task encoder makes of every sample is found once and stored: number of outputs, lengths, groups.

dataset, encoder --measure--> chunks of samples, in processes --> one folder of arrays, named by what decides it
MeasuredFacts.open(folder) --> facts of the plan: filters, generators, groups and packs in closed form

chunk        the facts of some neighbouring samples: the hooks are run
             the folder of facts: read, checked, summed up
running      `measure`: finds facts that are there, runs processes, merges chunks
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
