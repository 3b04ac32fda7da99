"""Layouts convert a record, however it is written, to one of the samples of `headrace.samples.conversation`.

    {"conversations": [{"from": "human", "value": "Hi"}, ...]}
      -> recognise     finds the layout that all of the first records fit, and says why
      -> make_layout   makes a layout by its name, with the user's names of fields and roles
      -> convert       returns a Conversation, Completion, Preference, Prompt, Group or Text, or raises an InputError

`known` holds all layouts, and `LAYOUTS` lists them.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
