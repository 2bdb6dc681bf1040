import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pandas as pd
import pytest

from volition import FixedAutonomy, SimulatedPopulation, load_model
from volition.learning.networks import Recipe
from volition.learning.networks.network import ADENetwork, save_network

UNIFORM = 0.7 * np.eye(4) + 0.1 * (1 - np.eye(4))


@pytest.fixture
def run(command):
    return partial(command, "learn")


@pytest.fixture
def files(tmp_path, four_groups):
    """Write entities, centres, a log and a simulated population; return the entities."""
    X = four_groups[::6]
    names = [f"s{i}" for i in range(len(X))]
    pd.DataFrame({"name": names, "x": X[:, 0], "y": X[:, 1]}).to_csv(
        tmp_path / "sensors.csv", index=False
    )
    rng = np.random.default_rng(0)
    Y = X[rng.choice(len(X), 4, replace=False)]
    pd.DataFrame(Y, columns=["x", "y"]).to_csv(tmp_path / "today.csv", index=False)
    people = SimulatedPopulation(X, FixedAutonomy(UNIFORM), random_state=0)
    i, j = rng.integers(0, len(X), 6000), rng.integers(0, 4, 6000)
    answer = people.respond(i, j, Y)
    pd.DataFrame(
        {
            "timestamp": pd.date_range("2026-01-01", periods=6000, freq="min").astype(str),
            "entity": [names[n] for n in i],
            "prescribed": j,
            "realised": answer.realized,
            "cost": answer.cost,
        }
    ).to_csv(tmp_path / "answers.csv", index=False)
    (tmp_path / "sim.toml").write_text(
        '[entities]\nfile = "sensors.csv"\ncolumns = ["x", "y"]\nid = "name"\n'
        "[autonomy]\nkappa = 0.1\nzeta = 0\n[answers]\nmissing = 0.1\n"
        "[[changes]]\nat = 6000\nkappa = 0.5\nzeta = 0\n"
    )
    return X


RESULTS = {
    "assignments.csv",
    "centers.csv",
    "history.csv",
    "learning.png",
    "state.safetensors",
    "summary.json",
}
LOG = ("--log", "answers.csv", "--entities", "sensors.csv", "--centers", "today.csv")


def test_learning_from_costs_alone(run, files, tmp_path):
    words = ("--population", "sim.toml", "-k", 4, "--learner", "aden", "--out", "res")
    code, out, err = run(*words, "--interactions", 2500)
    assert code == 0, err
    assert set(os.listdir(tmp_path / "res")) == RESULTS  # no network: terms suffice
    summary = json.loads((tmp_path / "res" / "summary.json").read_text())
    assert summary["learner"] == "ADENClustering"
    assert summary["estimate"] == "choices"
    assert summary["gap_percent"] < 3
    assert "gap" in out
    assert load_model(tmp_path / "res" / "state.safetensors").n_interactions_ == 2500


def test_a_network_to_start_from(run, files, tmp_path):
    save_network(ADENetwork(2, Recipe().size(), "costs"), tmp_path / "n.safetensors")
    words = ("--population", "sim.toml", "-k", 3, "--learner", "aden", "--out", "res")
    more = ("--interactions", 200, "--network", "n.safetensors")
    code, _, err = run(*words, *more)
    assert code == 0, err
    assert set(os.listdir(tmp_path / "res")) == RESULTS | {"network.safetensors"}
    more = ("--interactions", 200, "--network", "res/network.safetensors")
    code, _, err = run(*words, *more, "--overwrite")
    assert code == 0, err
    code, _, err = run(*words, *more[:-1], "res/summary.json", "--overwrite")
    assert code == 2
    assert "res/summary.json is not a file saved by volition" in err


def test_learning_from_choices(run, files, tmp_path):
    words = ("--population", "sim.toml", "-k", 4, "--learner", "choice", "--out", "res")
    code, out, err = run(*words, "--interactions", 1500)
    assert code == 0, err
    assert set(os.listdir(tmp_path / "res")) == RESULTS
    summary = json.loads((tmp_path / "res" / "summary.json").read_text())
    assert summary["learner"] == "ChoiceClustering"
    assert summary["estimate"] == "choices"
    assert summary["gap_percent"] < 3
    assert "cost per entity (squared units of x, y)" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--learner", "deep"), "--learner must be tabular, choice or aden, got 'deep'."),
        (("--learner", "aden", "--estimate", "costs"), "--estimate belongs to --learner tabular."),
        (("--network", "n.safetensors"), "--network belongs to --learner aden."),
        (("--learner", "aden", "--network", "none.safetensors"), "No such file: none.safetensors"),
    ],
)
def test_options_that_do_not_go_together(run, files, tmp_path, words, message):
    code, _, err = run("--population", "sim.toml", "-k", 4, "--out", "res", *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "res").exists()


def test_a_log_does_not_move_its_centres(run, files):
    # Whatever else is missing or wrong is of no concern then.
    code, _, err = run("--log", "none.csv", "--learner", "aden")
    assert code == 2
    assert "use --learner tabular with --log" in err


def test_learning_from_a_simulated_population(run, files, tmp_path):
    code, out, err = run(
        "--population", "sim.toml", "-k", 4, "--interactions", 12_000, "--tol", 0, "--out", "res",
        "--learner", "tabular",
    )  # fmt: skip
    assert code == 0, err
    assert set(os.listdir(tmp_path / "res")) == RESULTS | {"change-1.png"}
    summary = json.loads((tmp_path / "res" / "summary.json").read_text())
    assert summary["n_answers"] < summary["n_interactions"] == 12_000
    assert summary["gap_percent"] < 3
    assert len(summary["changes"]) == 1
    assert "a change was noticed: how often entities obey" in out
    assignments = pd.read_csv(tmp_path / "res" / "assignments.csv")
    assert list(assignments["entity"][:2]) == ["s0", "s1"]
    model = load_model(tmp_path / "res" / "state.safetensors")
    np.testing.assert_array_equal(model.labels_, assignments["prescribed"])
    history = pd.read_csv(tmp_path / "res" / "history.csv")
    assert history["interactions"].iloc[-1] == 12_000


def test_learning_from_a_log(run, files, tmp_path):
    code, _, err = run(*LOG, "--columns", "x,y", "--id", "name", "--out", "res")
    assert code == 0, err
    assert set(os.listdir(tmp_path / "res")) == RESULTS
    summary = json.loads((tmp_path / "res" / "summary.json").read_text())
    assert summary["n_clusters"] == 4
    assert "optimum_for_known_p" not in summary
    assert summary["n_answers"] == 6000
    assert summary["stop_reason"] == "the log is at its end"


def test_going_on(run, files, tmp_path):
    words = (
        "--population",
        "sim.toml",
        "-k",
        4,
        "--learner",
        "tabular",
        "--tol",
        0,
        "--out",
        "res",
    )
    assert run(*words, "--interactions", 3000)[0] == 0
    code, out, err = run(*words, "--interactions", 5000, "--resume")
    assert code == 0, err
    assert "5000 prescriptions" in out or "5100 prescriptions" in out
    history = pd.read_csv(tmp_path / "res" / "history.csv")
    assert history["interactions"].iloc[0] < 3000 < history["interactions"].iloc[-1]


@pytest.mark.parametrize("learner", ["tabular", "choice"])
def test_going_on_to_fewer_questions_than_were_asked_says_so(run, files, learner):
    words = ("--population", "sim.toml", "-k", 4, "--learner", learner, "--tol", 0, "--out", "res")
    assert run(*words, "--interactions", 2000)[0] == 0
    code, out, err = run(*words, "--interactions", 500, "--resume")
    assert (code, err) == (0, "")
    assert "2000 prescriptions" in out
    assert "Ended: n_interactions=500, and 2000 were asked before." in out


def test_ctrl_c_keeps_what_was_learned(files, tmp_path):
    words = ["learn", "--population", "sim.toml", "-k", "4", "--tol", "0", "--out", "res"]
    words += ["--interactions", "1000000000"]
    code = f"import sys; sys.argv[1:] = {words}; from volition.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "res" / "state.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Ended early by Ctrl-C; what was learned is kept" in out
    assert set(os.listdir(tmp_path / "res")) >= RESULTS


BAD_TOML = {
    "no.toml": None,
    "text.toml": "hello",
    "key.toml": '[entities]\ndataset = "four_groups"\ncolour = 3\n',
    "both.toml": '[entities]\ndataset = "four_groups"\nfile = "sensors.csv"\n',
    "data.toml": '[entities]\ndataset = "iris"\n',
    "kappa.toml": '[entities]\ndataset = "four_groups"\n[autonomy]\nkappa = 2\n',
    "gamma.toml": '[entities]\ndataset = "four_groups"\n[autonomy]\ngamma = 2\n',
    "missing.toml": '[entities]\ndataset = "four_groups"\n[answers]\nmissing = 7\n',
    "when.toml": '[entities]\ndataset = "four_groups"\n[[changes]]\nkappa = 0.5\n',
    "silent.toml": '[entities]\ndataset = "four_groups"\n[answers]\nmissing = 1\n',
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Give --population FILE.toml or --log FILE.csv"),
        (["--population", "sim.toml", "--log", "answers.csv"], "one of the two"),
        (["--population", "sim.toml"], "--clusters is needed"),
        (["--population", "sim.toml", "-k", 0], "n_clusters must be an integer >= 1"),
        (["--population", "sim.toml", "-k", 4, "--exploration", 3], "exploration must be"),
        (["--population", "sim.toml", "-k", 4, "--estimate", "x"], "estimate must be one of"),
        (["--population", "sim.toml", "-k", 4, "--resume"], "to resume from"),
        (["--population", "no.toml", "-k", 4], "No such file: no.toml"),
        (["--population", "text.toml", "-k", 4], "text.toml is not a TOML file"),
        (["--population", "key.toml", "-k", 4], "unknown key 'colour'"),
        (["--population", "both.toml", "-k", 4], "'file' or 'dataset', one of the two"),
        (["--population", "data.toml", "-k", 4], "dataset must be 'four_groups' or 'city'"),
        (["--population", "kappa.toml", "-k", 4], "kappa must be a number in [0, 1]"),
        (["--population", "gamma.toml", "-k", 4], "'gamma' needs 'kappa'"),
        (["--population", "missing.toml", "-k", 4], "missing must be a number in [0, 1]"),
        (["--population", "when.toml", "-k", 4], "'at' must be the interaction"),
        (["--population", "silent.toml", "-k", 4], "answered none of the last"),
        (["--population", "sim.toml", "-k", 4, "--columns", "x"], "--columns belongs to --log"),
        (["--log", "answers.csv"], "--log needs --entities FILE and --centers FILE"),
        ([*LOG, "-k", 3, "--columns", "x,y", "--id", "name"], "--clusters 3, but there are 4"),
        ([*LOG, "--columns", "x,y"], "names entity 's"),
        ([*LOG], "names entity 's"),  # the columns are those of the centres
        (["--log", "unknown.csv", *LOG[2:], "--columns", "x,y"], "entity '999' at line 3"),
        (["--log", "cluster.csv", *LOG[2:], "--columns", "x,y"], "cluster 7 at line 2"),
        (["--log", "cost.csv", *LOG[2:], "--columns", "x,y"], "cost at line 2 is 5, but entity 0"),
        (
            ["--log", "time.csv", *LOG[2:], "--columns", "x,y"],
            "timestamp at line 3 (1.0) is before",
        ),
        (["--log", "column.csv", *LOG[2:], "--columns", "x,y"], "no column 'realized'"),
        (["--log", "empty.csv", *LOG[2:], "--columns", "x,y"], "has a header but no rows"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(run, files, tmp_path, words, message):
    for name, text in BAD_TOML.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    head = "entity,prescribed,realized"
    for name, text in {
        "unknown.csv": f"{head}\n0,0,0\n999,0,0\n",
        "cluster.csv": f"{head}\n0,0,7\n",
        "cost.csv": f"{head},cost\n0,0,0,5\n",
        "time.csv": f"{head},timestamp\n0,0,0,2\n0,0,0,1\n",
        "column.csv": "entity,prescribed,where\n0,0,0\n",
        "empty.csv": f"{head}\n",
    }.items():
        (tmp_path / name).write_text(text)
    code, _, err = run(*words, "--out", "res", "--interactions", 50_000)
    assert code == 2
    assert err.startswith("volition: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "res").exists()
