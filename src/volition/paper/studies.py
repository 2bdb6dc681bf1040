"""All studies, in the order of the paper."""

from __future__ import annotations

from volition.paper.efficiency import EFFICIENCY
from volition.paper.figure1 import FIGURE1
from volition.paper.grid import GRID
from volition.paper.london import LONDON
from volition.paper.phase import PHASE
from volition.paper.table1 import TABLE1
from volition.paper.theory import THEORY

#: all studies by name, in the order of the paper
STUDIES = {
    study.name: study for study in (FIGURE1, TABLE1, PHASE, GRID, LONDON, THEORY, EFFICIENCY)
}
