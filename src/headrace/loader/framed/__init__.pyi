from headrace.loader.framed.feed import (
    FramedFeed as FramedFeed,
    gathered_state as gathered_state,
    merge_state_dicts as merge_state_dicts,
)
