"""AstrAI's ``meta.json`` and a ``.bin`` for each key: documents of parallel streams, read, checked and written."""
