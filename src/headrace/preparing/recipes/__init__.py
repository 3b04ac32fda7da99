"""Make a store of the records of a recipe, whatever their layouts. This package belongs to recipes alone.

inputs      the recipe, from a file or a URL -> files, the first records of each input, layouts
resolving   all of this, tokeniser, template, keys, end tokens, samples of the first records -> run_plan
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
