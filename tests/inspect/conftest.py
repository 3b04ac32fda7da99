"""One folder with everything."""

from __future__ import annotations

from ui_made import demo, inside

__all__ = ["demo", "inside"]
