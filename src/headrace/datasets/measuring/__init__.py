"""What a task encoder makes of every sample, found out once and kept: how many outputs, how long, of which group.

dataset, encoder --measure--> chunks of samples, in processes --> one folder of arrays, named by what decides it
MeasuredFacts.open(folder) --> facts of the plan: filters, generators, groups and packs in closed form

group_keys   keys of groups as JSON and back
chunk        the facts of some neighbours: the hooks are run
merging      chunks as one
facts        the folder: read, checked, summed up
running      `measure`: what is there already, processes, progress
"""

from headrace.datasets.measuring.facts import FaultCount, GroupFacts, MeasuredFacts, Summary
from headrace.datasets.measuring.running import measure

__all__ = ["FaultCount", "GroupFacts", "MeasuredFacts", "Summary", "measure"]
