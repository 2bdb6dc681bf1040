"""The drawing functions, for a machine that may have no screen."""

from __future__ import annotations

from types import ModuleType


def plotting_to_files() -> ModuleType:
    """Return `volition.plotting`; matplotlib takes a second to load, and opens no window."""
    import matplotlib

    matplotlib.use("Agg")
    from volition import plotting

    return plotting
