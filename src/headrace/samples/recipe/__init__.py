"""Recipes: typed descriptions of how records become a store, read from YAML, JSON or AstrAI's configurations.

recipe.yaml
  -> reading            checks every key and word; an error names the nearest valid one. It translates a configuration
                        of AstrAI, and refuses values that contradict each other
  -> recipe             `Recipe`, a frozen struct and the only place of the defaults; the keys of the store
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
