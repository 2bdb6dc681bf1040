"""Words from files in pictures: shown as they are, never read as formulas, never too long."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from volition.io.checked_files import naming

#: characters of a name that a picture shows
LONGEST = 60
#: matplotlib must not take what stands between dollar signs for a formula
PLAIN: dict[str, Any] = {"parse_math": False}


def label(text: Any, longest: int = LONGEST) -> str:
    r"""Return text for a picture: control characters written out, cut if long.

    Give it to matplotlib with ``**PLAIN``.

    Examples
    --------
    >>> from volition.plotting.text import label
    >>> label("a\tb"), label("$x$")
    ('a\\tb', '$x$')
    """
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text)[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


@contextmanager
def drawing() -> Iterator[None]:
    """Keep matplotlib from warning of a letter that its font lacks, or of names too long for it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        warnings.filterwarnings("ignore", message=".*layout not applied", category=UserWarning)
        yield


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a picture to a file, and close it.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from matplotlib import pyplot as plt
    >>> from volition.plotting.text import PLAIN, save_figure
    >>> figure, ax = plt.subplots()
    >>> label = ax.set_xlabel("$x_{$ 東", **PLAIN)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_figure(figure, Path(folder) / "a.png")
    ...     (Path(folder) / "a.png").stat().st_size > 1000
    True
    """
    from matplotlib import pyplot as plt

    with naming(path), drawing():
        figure.savefig(path, **{"dpi": 140} | options)
    plt.close(figure)
