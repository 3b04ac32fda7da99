"""Where a run writes to: `place` is what `folder` and `url` have in common, and how runs are described and compared."""
