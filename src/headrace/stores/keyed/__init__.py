"""The keyed format, AstrAI's ``meta.json`` with a ``.bin`` for each key: read, checked and written."""
