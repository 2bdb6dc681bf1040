"""Fixtures shared by all tests."""

import os
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from volition.cli.main import main
from volition.datasets import load_four_groups

SHARED = Path(__file__).resolve().parents[2] / "shared"

# Two workers of two threads each wait for one another on two cores. That holds for PyTorch, for the
# linear algebra below NumPy, and for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
torch.set_num_threads(1)
threadpool_limits(1)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run the command line as a user would; return exit code, output and error text."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr("sys.argv", ["volition", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return call


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def four_groups():
    return load_four_groups().data


@pytest.fixture(scope="session")
def shared():
    if not (SHARED / "published" / "table1.csv").is_file():
        pytest.skip("the published figures (../shared) are not here")
    return SHARED


@pytest.fixture(scope="session")
def some_groups(four_groups):
    """One in six of the four groups' entities."""
    return four_groups[::6]
