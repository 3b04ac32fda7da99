from headrace.samples.layouts.fields import without_nulls as without_nulls
from headrace.samples.layouts.known import LAYOUTS as LAYOUTS, make_layout as make_layout
from headrace.samples.layouts.layout import (
    Layout as Layout,
    Sample as Sample,
    assistant as assistant,
    cut as cut,
    join as join,
    user as user,
    with_messages as with_messages,
)
from headrace.samples.layouts.recognition import (
    NUM_RECORDS as NUM_RECORDS,
    EachLayout as EachLayout,
    Recognised as Recognised,
    recognise as recognise,
)
from headrace.samples.layouts.turns import ALIASES as ALIASES, InputSpec as InputSpec
