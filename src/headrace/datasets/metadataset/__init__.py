"""Metadatasets: YAML files that say which datasets are mixed and how. No torch.

Files of both of Energon's versions are read as they are; some keys are Headrace's own.

mix.yaml --reading--> entries as written --resolving, nested files--> Tree --building--> Dataset | Mix --> Run
                        (description)                                   |
                                                                        +--> traverse, prepare (joins)
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
