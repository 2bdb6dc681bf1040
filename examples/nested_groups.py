"""Where nested groups split, when 1 of 16 prescriptions is overridden: the paper's appendix figure.

Writes docs/nested_groups.png, or the file given as argument (.png, or .gif/.mp4 for the animation).
"""

import sys

import matplotlib

matplotlib.use("Agg")
import numpy as np

from volition import FixedAutonomy, anneal
from volition.annealing.schedules import Critical
from volition.core.problem import Problem
from volition.datasets import make_nested_groups
from volition.plotting import animate, plot_phase

K = 16
override = (1 - np.eye(K)) / (K - 1)
autonomy = FixedAutonomy(15 / 16 * np.eye(K) + 1 / 16 * override)
problem = Problem(make_nested_groups().data, autonomy=autonomy)
result = anneal(problem, K, schedule=Critical(1e-3, 10.0))
for t in result.transitions:
    predicted = "" if t.predicted is None else f", predicted {t.predicted:.5f}"
    print(f"{t.n_before:2d} -> {t.n_after:2d} at beta = {t.beta:.5f}{predicted}")

path = sys.argv[1] if len(sys.argv) > 1 else "docs/nested_groups.png"
if path.endswith((".gif", ".mp4")):
    animate(problem, result, path)
else:
    title = "Nested groups, K = 16, obeying 15 times of 16"
    plot_phase(problem, result, title).savefig(path, dpi=110)
print(f"Written to {path}")
