from headrace.samples.layouts import InputSpec as InputSpec
from headrace.samples.recipe.reading import (
    load_recipe as load_recipe,
    make_recipe as make_recipe,
    parse_recipe as parse_recipe,
    resolve_layout as resolve_layout,
    with_now as with_now,
)
from headrace.samples.recipe.recipe import (
    MAKES as MAKES,
    EndSpec as EndSpec,
    ErrorSpec as ErrorSpec,
    LengthSpec as LengthSpec,
    OutputSpec as OutputSpec,
    Recipe as Recipe,
    RecordFilters as RecordFilters,
    Section as Section,
    Source as Source,
    StoreKey as StoreKey,
    TemplateSpec as TemplateSpec,
    TrainType as TrainType,
    store_keys as store_keys,
)
