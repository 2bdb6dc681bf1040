"""The paper's tables and figures, one study each: ``volition reproduce NAME``.

Studies only arrange calls of the public interface; they double as examples of how to use it.
"""

from volition.paper.efficiency import EFFICIENCY
from volition.paper.figure1 import FIGURE1
from volition.paper.grid import GRID
from volition.paper.journal import open_journal, run
from volition.paper.london import LONDON
from volition.paper.page import Page, together
from volition.paper.phase import PHASE
from volition.paper.study import Case, Settings, Study
from volition.paper.table1 import TABLE1
from volition.paper.theory import THEORY

#: all studies, in the order of the paper
STUDIES = {
    study.name: study for study in (FIGURE1, TABLE1, PHASE, GRID, LONDON, THEORY, EFFICIENCY)
}

__all__ = ["STUDIES", "Case", "Page", "Settings", "Study", "open_journal", "run", "together"]
