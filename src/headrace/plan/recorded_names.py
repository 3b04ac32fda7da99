"""The names under which recipes record classes and functions; those of ours that moved keep their first name."""

from __future__ import annotations

from typing import Any, Final

_DECODING: Final = "headrace.samples.media.decoding"

FIRST_MODULES: Final[dict[str, dict[str, str]]] = {
    "headrace.compat.energon.wrappers": {
        "FunctionEncoder": "headrace.datasets.encoded.functions",
    },
    "headrace.encoders.task_encoder": {
        "AugmentTaskEncoder": "headrace.encoders.augment",
        "DefaultTaskEncoder": "headrace.encoders.default",
    },
    f"{_DECODING}.av_decoder": {
        "AVDecoder": f"{_DECODING}.av.decoder",
        "get_clips_uniform": f"{_DECODING}.av.clips",
        "get_single_frames_uniform": f"{_DECODING}.av.clips",
    },
    f"{_DECODING}.av_streams": {
        "AVData": f"{_DECODING}.av.data",
        "AVMetadata": f"{_DECODING}.av.data",
    },
    "headrace.samples.media.registry": {
        "load_function": "headrace.samples.media.references",
    },
}
"""Present module -> name in it -> the module under which saved runs recorded that name."""


def recorded_name(thing: Any) -> str:
    """Return ``module.qualname`` of a class or function, or of the class of an object that has no name of its own.

    The body of a function plays no part. A class or function that has moved keeps the name under which the first runs
    were saved.
    """
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module = FIRST_MODULES.get(named.__module__, {}).get(named.__qualname__.partition(".")[0], named.__module__)
    return f"{module}.{named.__qualname__}"
