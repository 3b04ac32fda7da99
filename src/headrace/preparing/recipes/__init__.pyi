from headrace.preparing.recipes.inputs import (
    all_paths as all_paths,
    read_recipe as read_recipe,
    reads_stdin as reads_stdin,
    recipe_options as recipe_options,
    with_inputs as with_inputs,
    with_options as with_options,
)
from headrace.preparing.recipes.resolving import (
    find_template as find_template,
    find_tokenizer as find_tokenizer,
    resolve as resolve,
)
