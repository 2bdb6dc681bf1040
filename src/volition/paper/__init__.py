"""The paper's tables and figures, one study each: ``volition reproduce NAME``.

Studies only arrange calls of the public interface; they double as examples of how to use it.
"""

from typing import TYPE_CHECKING

from volition.core.lazy import lazy_names

if TYPE_CHECKING:
    from volition.paper.journal import open_journal, run
    from volition.paper.page import Page, together
    from volition.paper.studies import STUDIES
    from volition.paper.study import Case, Settings, Study

#: names of all studies, for help texts: the studies themselves take seconds to load
STUDY_NAMES = ("figure1", "table1", "phase", "grid", "london", "theory", "efficiency")

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "volition.paper.journal": ["open_journal", "run"],
        "volition.paper.page": ["Page", "together"],
        "volition.paper.studies": ["STUDIES"],
        "volition.paper.study": ["Case", "Settings", "Study"],
    },
)

__all__ = [
    "STUDIES",
    "STUDY_NAMES",
    "Case",
    "Page",
    "Settings",
    "Study",
    "open_journal",
    "run",
    "together",
]
