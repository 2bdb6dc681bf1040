"""Every benchmark still finds the names that it uses."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

LOAD = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
for path in sys.argv[2:]:
    try:
        runpy.run_path(path, run_name="loaded")
    except ImportError as error:
        print(path, error)
"""


def test_benchmarks_load():
    paths = sorted((ROOT / "benchmarks").glob("*.py"))
    found = subprocess.run(
        [sys.executable, "-c", LOAD, str(ROOT / "benchmarks"), *map(str, paths)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert len(paths) > 10
    assert found.stdout == "", found.stdout
    assert found.returncode == 0, found.stderr
