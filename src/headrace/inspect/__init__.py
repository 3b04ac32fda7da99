"""What commands and pages show, as plain frozen structs. The code that prints or draws them reads no store.

    describe(path)            what is there               Description, SampleDescription, ...       headrace info
    check(path)               whether it is whole         Verdict, SampleVerdict, MixVerdict, ...   headrace check
    preview(path)             documents or samples        Preview, SamplePreview, MixPreview        headrace preview
    where(path, number)       the line of the input       DocumentOrigins, SampleOrigins            headrace where
    render(recipe, record)    one record, step by step    Rendering                                 headrace render

Each answer is an `Answer`: ``to_dict()`` is what the command prints with ``--json``. ``shown()`` are the blocks that
it shows, of which `lines` makes lines of a terminal, and ``headrace.ui`` pages. Files by topic:

    blocks, terminal     what is shown: facts, tables, texts, tokens, media; lines with colours and pictures
    questions            describe, check and preview: what is at the path, and which options are for it
    description, store_checks, token_preview                    of stores of tokens
    sample_description, sample_checks, sample_preview           of samples with named parts
    metadataset, kept    of mixes; of what ``headrace measure`` and plans of packs keep
    shown                what previews hold; `samples` reads parts, `token_texts` turns ids into texts
    origins, rendering   where samples and documents come from; what a recipe makes of a record
    run_files            the file of a run, and what an edit of it changes
    figures              numbers and texts for people
    views/               what only the pages of ``headrace ui`` show

Nothing that a ``dataset.yaml`` names is imported, and pickles are not read. Pictures need Pillow, video and sound need
PyAV; without them, a line says so.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
