"""Datasets of Megatron-Energon, shards below a folder with a ``.nv-meta``: read and written.

config_file    reads YAML and JSON files in Energon's dialect; .info.json: the shards and their numbers of samples
splits         split.yaml: the parts train, val, test, what is excluded, and names with braces
dataset_yaml   dataset.yaml: the type of the samples; nothing that it names is imported
sqlite_index   index.sqlite: places of samples and parts by key, and metadata of media; finds samples by key
sqlite_writer  writes index.sqlite and its uuid
shards         shards that are tars or stores of tokens
store          EnergonStore: the samples of one part
jsonl          JsonlSamplesStore: one record a line, with its .jsonl.idx
filesystem     FilesystemStore: plain files, used as an auxiliary dataset
joined         JoinedStore: several datasets side by side, by join_index_<hash>.bin
join_writer    writes a join index
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
