"""Where a run writes to: a folder, or the same at a URL."""
