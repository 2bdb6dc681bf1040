"""How the house reads: lines, long functions, modules in the root, words of the README, start-up.

    python benchmarks/house.py --against 6756558

measures this tree and an earlier revision of it, side by side.
"""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from common import ROOT, report

LONGEST = 80
FIT = """
from volition import AutonomyAwareClustering, DistanceAutonomy
from volition.datasets import load_four_groups
X = load_four_groups().data
AutonomyAwareClustering(4, autonomy=DistanceAutonomy(0.3, temperature=0.01), random_state=0).fit(X)
"""
HELP = """
import sys
sys.argv = ["volition", "--help"]
try:
    from volition.__main__ import main
except ImportError:
    from volition_command import main
main()
"""


def seconds(tree: Path, code: str, repeats: int, **environment: str) -> float:
    """Return the shortest time of a new Python process that runs some code."""
    env = os.environ | {"PYTHONPATH": str(tree / "src")} | environment
    found = []
    for _ in range(repeats):
        began = perf_counter()
        subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
        found.append(perf_counter() - began)
    return min(found)


def measure(tree: Path) -> dict[str, float]:
    """Return the figures of a tree."""
    package = tree / "src" / "volition"
    modules = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    lengths = [
        node.end_lineno - node.lineno + 1
        for text in modules.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    ]
    readme = (tree / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as empty:
        first = seconds(tree, FIT, 1, NUMBA_CACHE_DIR=empty)
    return {
        "lines of src": sum(text.count("\n") for text in modules.values()),
        "modules": len(modules),
        "longest module": max(text.count("\n") for text in modules.values()),
        "modules in the root": sum(path.parent == package for path in modules),
        f"functions over {LONGEST} lines": sum(length > LONGEST for length in lengths),
        "longest function": max(lengths),
        "words of the README": len(readme.split()),
        "import volition, s": seconds(tree, "import volition", 5),
        "volition --help, s": seconds(tree, HELP, 5),
        "first fit, nothing compiled before, s": first,
        "the same again, s": seconds(tree, FIT, 2),
    }


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--against", help="an earlier revision")
    options = parser.parse_args()
    columns = {"here": measure(ROOT)}
    if options.against:
        with tempfile.TemporaryDirectory() as folder:
            command = ["git", "-C", str(ROOT), "archive", options.against]
            archive = subprocess.run(command, check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
            columns = {options.against: measure(Path(folder)), **columns}
    rows = [
        {"what": what, **{name: column[what] for name, column in columns.items()}}
        for what in columns["here"]
    ]
    report("house", rows, {})


if __name__ == "__main__":
    main()
