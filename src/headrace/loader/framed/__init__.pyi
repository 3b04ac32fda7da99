from headrace.loader.framed.feed import (
    FramedFeed as FramedFeed,
    merge_state_dicts as merge_state_dicts,
)
