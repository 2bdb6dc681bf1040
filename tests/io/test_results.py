"""What reaches disks: nothing lost, nothing half written, no earlier result replaced unasked."""

import json
import os
import subprocess

import numpy as np
import pandas as pd
import pytest

from volition.paper.journal import Journal

SIMULATED = """
[entities]
file = "t.csv"
columns = ["x", "y"]
[autonomy]
kappa = 0.2
temperature = 10.0
"""


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(c, 0.3, (12, 2)) for c in ((0, 0), (5, 5), (0, 5))])
    frame = pd.DataFrame(X, columns=["x", "y"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    return frame


# -- earlier results ------------------------------------------------------------------------------


def written(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "t.csv", "-k", 3),
        ("phase", "t.csv", "--max-clusters", 4, "--quiet"),
        ("learn", "--population", "p.toml", "-k", 3, "--interactions", 400),
    ],
    ids=lambda words: words[0],
)
def test_a_second_run_needs_overwrite(command, table, tmp_path, monkeypatch, words):
    (tmp_path / "p.toml").write_text(SIMULATED)
    (tmp_path / "res").mkdir()
    (tmp_path / "res" / "notes.txt").write_text("mine")  # somebody else's files do not matter
    assert command(*words, "--out", "res")[0] == 0
    before = written(tmp_path / "res")

    def computed(*args, **kwargs):
        raise AssertionError("computed all the same")

    with monkeypatch.context() as patch:
        patch.setattr("volition.AutonomyAwareClustering.fit", computed)
        patch.setattr("volition.cli.phase.run.suggest_n_clusters", computed)
        patch.setattr("volition.estimators.learner.Learner.fit", computed)
        code, out, err = command(*words, "--out", "res")
    assert (code, out) == (2, "")
    assert err.startswith("volition: The output folder res holds results of an earlier run (")
    assert "--overwrite replaces them, another --out keeps both.\n" in err
    assert err.count("\n") == 1
    assert ("--resume goes on from state.safetensors" in err) == (words[0] == "learn")
    assert written(tmp_path / "res") == before
    code, _, err = command(*words, "--out", "res", "--overwrite", "--seed", 1)
    assert code == 0, err
    assert json.loads((tmp_path / "res" / "summary.json").read_text())["seed"] == 1
    assert (tmp_path / "res" / "notes.txt").read_text() == "mine"


def test_one_file_that_would_be_replaced_is_enough(command, table, tmp_path):
    (tmp_path / "res").mkdir()
    (tmp_path / "res" / "summary.json").write_text("{}")
    code, _, err = command("fit", "t.csv", "-k", 2, "--out", "res")
    assert code == 2
    assert "(summary.json)" in err
    assert written(tmp_path / "res") == {"summary.json": b"{}"}


def test_what_is_no_longer_true_goes(command, table, tmp_path):
    words = ("phase", "t.csv", "--max-clusters", 3, "--quiet", "--out", "res")
    assert command(*words, "--animate")[0] == 0
    assert (tmp_path / "res" / "annealing.gif").exists()
    assert command(*words, "--overwrite")[0] == 0
    assert not (tmp_path / "res" / "annealing.gif").exists()


def test_learning_goes_on_without_overwrite(command, table, tmp_path):
    (tmp_path / "p.toml").write_text(SIMULATED)
    words = ("learn", "--population", "p.toml", "-k", 3, "--tol", 0, "--out", "res")
    assert command(*words, "--interactions", 300)[0] == 0
    code, _, err = command(*words, "--interactions", 600, "--resume")
    assert code == 0, err
    assert json.loads((tmp_path / "res" / "summary.json").read_text())["n_interactions"] == 600
    code, _, err = command(*words, "--resume", "--overwrite")
    assert code == 2
    assert "--resume keeps an earlier run and --overwrite does not" in err


def test_estimates_are_not_replaced_unasked(command, table, tmp_path):
    (tmp_path / "res").mkdir()
    (tmp_path / "res" / "autonomy.safetensors").write_text("of last week")
    code, _, err = command(
        "estimate", "--log", "none", "--entities", "t.csv", "--centers", "none", "--out", "res"
    )
    assert code == 2
    assert "res holds results of an earlier run (autonomy.safetensors)" in err


def test_demo_replaces_its_own_results_and_no_others(command, table, tmp_path):
    assert command("demo", "--out", "d", "--quiet")[0] == 0
    assert command("demo", "--out", "d", "--quiet", "--seed", 1)[0] == 0
    assert json.loads((tmp_path / "d" / "summary.json").read_text())["seed"] == 1
    assert command("fit", "t.csv", "-k", 2, "--out", "mine")[0] == 0
    code, _, err = command("demo", "--out", "mine", "--quiet")
    assert code == 2
    assert "mine holds results of an earlier run" in err


def test_reproduced_pages_are_not_replaced_unasked(command, tmp_path):
    words = ("reproduce", "figure1", "--quick", "--quiet", "--out", "r")
    assert command(*words)[0] == 0
    code, _, err = command(*words)
    assert code == 2
    assert "r/figure1 holds results of an earlier run (figure1.json, page.md); --resume" in err
    assert command(*words, "--resume")[0] == 0
    assert command(*words, "--overwrite")[0] == 0
    (tmp_path / "r" / "README.md").write_text("# My project")
    code, _, err = command(*words, "--resume")
    assert code == 2
    assert "r/README.md was not written by volition reproduce" in err
    assert (tmp_path / "r" / "README.md").read_text() == "# My project"


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("", "--out is empty"),
        ("  ", "--out is empty"),
        ("t.csv/x", "t.csv is a file"),
        ("n" * 300, "cannot be written: File name too long"),
        ("/proc/volition", "cannot be written"),
        ("dangling", "cannot be written"),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        ("fit", "t.csv", "-k", "2"),
        ("phase", "t.csv"),
        ("demo",),
        ("learn", "--population", "p.toml", "-k", "2"),
        ("estimate", "--log", "t.csv", "--entities", "t.csv", "--centers", "t.csv"),
        ("reproduce", "figure1"),
    ],
    ids=lambda words: words[0],
)
def test_folders_that_cannot_be_are_refused_at_once(
    command, table, tmp_path, monkeypatch, words, out, message
):
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling")
    (tmp_path / "p.toml").write_text(SIMULATED)
    before = sorted(os.listdir(tmp_path))

    def computed(*args, **kwargs):
        raise AssertionError("computed before looking")

    monkeypatch.setattr("volition.AutonomyAwareClustering.fit", computed)
    monkeypatch.setattr("volition.cli.phase.run.suggest_n_clusters", computed)
    monkeypatch.setattr("volition.estimators.learner.Learner.fit", computed)
    code, _, err = command(*words, "--out", out)
    assert code == 2
    assert message in err
    assert err.startswith("volition: ")
    assert err.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == before


# -- full disks ------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", folder]
    try:
        able = subprocess.run(options, capture_output=True, check=False).returncode == 0
    except OSError:
        able = False
    if not able:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("command_name", ["fit", "phase", "learn"])
def test_a_full_disk_is_one_sentence(command, table, tmp_path, small_disk, command_name):
    (tmp_path / "p.toml").write_text(SIMULATED)
    words = {
        "fit": ("fit", "t.csv", "-k", 3),
        "phase": ("phase", "t.csv", "--max-clusters", 3, "--quiet"),
        "learn": ("learn", "--population", "p.toml", "-k", 3, "--interactions", 400),
    }[command_name]
    if command_name == "learn":
        (small_disk / "filled").write_bytes(bytes(40_000))  # no room even for the state
    code, _, err = command(*words, "--out", "small/res")
    assert code == 2
    assert err.startswith("volition: small/res/")
    assert err.endswith(" cannot be written: No space left on device.\n")
    assert err.count("\n") == 1
    left = [path for path in small_disk.rglob("*") if path.name != "filled"]
    assert left == []


def test_a_journal_on_a_full_disk_keeps_its_lines(small_disk):
    journal = Journal(small_disk / "cases.jsonl", {"study": "s"})
    journal.write()

    def fill():
        for number in range(100):
            journal.add({"name": f"case {number}", "text": "x" * 3000})

    with pytest.raises(OSError, match=r"cases.jsonl cannot be written: No space left on device"):
        fill()
    lines = (small_disk / "cases.jsonl").read_text().splitlines()
    assert len(lines) > 5
    assert all(json.loads(line) for line in lines)
