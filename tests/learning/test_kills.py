"""kill -9 at random moments: nothing is lost, nothing counts twice, no number is used again.

A short run of benchmarks/kills.py, which kills each learner 50 times.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "kills.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_killed_learners_lose_nothing(tmp_path):
    words = [sys.executable, str(BENCHMARK), "live", "--kills", "2", "--results", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "kills_live.json").read_text())
    assert found["facts"]["kills"] == 12
    for row in found["rows"]:
        assert row["answers"] > 0
        wrong = ("lost", "twice", "numbers reused", "other answers")
        assert [row[name] for name in wrong] == [0, 0, 0, 0], row
