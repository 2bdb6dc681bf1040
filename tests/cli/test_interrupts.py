"""Ctrl-C keeps the best so far; what killed runs leave behind is swept."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from volition.io.results import output_folder


def write_table(folder, n):
    frame = pd.DataFrame(np.random.default_rng(0).random((n, 4)), columns=list("abcd"))
    frame.to_csv(folder / "t.csv", index=False)


def test_what_a_killed_run_left_is_swept(command, tmp_path):
    write_table(tmp_path, 20)
    program = """
import os, signal, sys
from pathlib import Path
from volition.io.results import output_folder
with output_folder(Path(sys.argv[1])) as work:
    (work / "centers.csv").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    res = tmp_path / "res"
    killed = subprocess.run([sys.executable, "-c", program, res], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = os.listdir(res)
    assert left.startswith(".volition-")
    with output_folder(tmp_path / "res") as other:  # of a run that is alive
        assert command("fit", "t.csv", "-k", 2, "--out", "res")[0] == 0
        assert left not in os.listdir(res)
        assert other.exists()
    assert len(os.listdir(res)) == 5


def interrupted(folder, words, n_signals=1, wait=0.0):
    """Run a command in another process, press Ctrl-C once it computes; return code and output."""
    program = (
        "import sys, volition.cli.fit.run, volition.cli.phase.run\n"
        "from volition.cli.interrupts import stoppable\n"
        "from volition.cli.main import main\n"
        "from contextlib import contextmanager\n"
        "@contextmanager\n"
        "def told():\n"
        "    with stoppable() as stopped:\n"
        "        print('computing', file=sys.stderr, flush=True)\n"
        "        yield stopped\n"
        "volition.cli.fit.run.stoppable = volition.cli.phase.run.stoppable = told\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stderr.readline()
    assert line == "computing\n", line + process.stderr.read()
    for _ in range(n_signals):
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_ctrl_c_keeps_the_best_so_far(tmp_path):
    write_table(tmp_path, 3000)
    words = ("fit", "t.csv", "-k", 40, "--kappa", 0.3, "--temperature", 0.1, "--out", "res")
    code, out, err = interrupted(tmp_path, words, wait=0.4)
    assert code == 0, err
    assert "stopped by Ctrl-C; this is the best so far." in out
    assert "not known (Ctrl-C)" in out
    summary = json.loads((tmp_path / "res" / "summary.json").read_text())
    assert summary["status"] == "stopped by Ctrl-C; this is the best so far"
    assert summary["distortion_if_autonomy_is_ignored"] is None
    centers = pd.read_csv(tmp_path / "res" / "centers.csv")
    assert np.isfinite(centers.to_numpy()).all()
    assert len(os.listdir(tmp_path / "res")) == 5


def test_ctrl_c_keeps_the_path_so_far(tmp_path):
    write_table(tmp_path, 3000)
    words = ("phase", "t.csv", "--kappa", 0.3, "--temperature", 0.1, "--out", "res")
    code, out, err = interrupted(tmp_path, words, wait=0.4)
    assert code == 0, err
    assert "stopped by Ctrl-C; this is the best so far, up to beta" in out
    summary = json.loads((tmp_path / "res" / "summary.json").read_text())
    assert summary["status"] == "stopped by Ctrl-C; this is the best so far"
    assert set(os.listdir(tmp_path / "res")) == {
        "persistence.csv", "path.csv", "summary.json", "phase.png",
    }  # fmt: skip


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    write_table(tmp_path, 30_000)
    words = ("fit", "t.csv", "-k", 60, "--kappa", 0.3, "--gamma", 0.5, "--out", "res")
    code, _, err = interrupted(tmp_path, words, n_signals=2, wait=0.5)
    assert code == 130
    assert err.endswith("Stopped; nothing was written.\n")
    assert "Traceback" not in err
    assert not (tmp_path / "res").exists()


def test_ctrl_c_in_an_estimate_is_one_sentence(command, monkeypatch, tmp_path):
    def pressed(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("volition.cli.estimate.run.read_logged", pressed)
    words = ("--log", "l.csv", "--entities", "e.csv", "--centers", "c.csv", "--out", "res")
    code, out, err = command("estimate", *words)
    assert (code, out, err) == (130, "", "Stopped; nothing was written.\n")
    assert not (tmp_path / "res").exists()


@pytest.mark.parametrize(
    ("module", "words", "said"),
    [
        ("typer", ("--version",), "Stopped.\n"),
        ("torch", ("demo",), "Stopped; nothing was written.\n"),
        ("torch", ("learn", "--population", "p.toml"), "Stopped.\n"),
    ],
)
def test_ctrl_c_while_the_command_loads_is_one_sentence(tmp_path, module, words, said):
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    program += "from volition.__main__ import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", said)
