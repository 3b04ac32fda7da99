"""What `info`, `check`, `preview`, `ls` and `cat` say of stores whose samples have keys and named parts.

    opening      a path -> its SampleStore, or None where it holds tokens
    description  the store in numbers                                      headrace info
    checking     the store's own check, keys, splits, hashes               headrace check
      decoding     every part of every sample decoded, in processes          ... --decode
    listing      keys, shards, parts, one sample after another             headrace ls
    parts        the bytes of a part -> what can be said of it             headrace cat, preview
      samples      a sample of parts, and the boxes of its texts
      preview      the samples that a user wants to see
        lines        for a terminal; `terminal_images` draws pictures there
        page         one HTML file that needs nothing else
    sources      the datasets of a metadataset, as they lie there
      mix_preview  its samples in the order of the mix; `mix_tokens` those of tokens
      mix_checking what it says, its joins, every dataset below once

Nothing that a ``dataset.yaml`` names is imported, and pickles are not read. Pictures need Pillow, video and sound PyAV;
without them there is a line that says so.
"""
