"""The paper's tables and figures, one study each: ``volition reproduce NAME``.

Studies only arrange calls of the public interface; they double as examples of how to use it.
"""

from volition.reproduce.efficiency import EFFICIENCY
from volition.reproduce.figure1 import FIGURE1
from volition.reproduce.grid import GRID
from volition.reproduce.journal import open_journal, run
from volition.reproduce.london import LONDON
from volition.reproduce.page import Page, together
from volition.reproduce.phase import PHASE
from volition.reproduce.study import Case, Settings, Study
from volition.reproduce.table1 import TABLE1
from volition.reproduce.theory import THEORY

#: all studies, in the order of the paper
STUDIES = {
    study.name: study for study in (FIGURE1, TABLE1, PHASE, GRID, LONDON, THEORY, EFFICIENCY)
}

__all__ = ["STUDIES", "Case", "Page", "Settings", "Study", "open_journal", "run", "together"]
