"""Every command runs with every option, and with every choice of an option that has choices.

Which options there are comes from the commands themselves: an option that no run below gives makes
`test_every_option_is_run` fail, and so does a choice.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from enum import Enum
from typing import Literal, get_args, get_origin

import numpy as np
import pandas as pd
import pytest
import typer

from volition import (
    AutonomyAwareClustering,
    DistanceAutonomy,
    SimulatedPopulation,
    save_autonomy,
    save_model,
)
from volition.cli.main import app
from volition.core.costs import METRICS
from volition.estimators.known import SOLVERS
from volition.learning.networks import Recipe
from volition.learning.networks.network import ADENetwork, save_network
from volition.paper import STUDIES, Case
from volition.paper.table1 import SCENARIOS

#: what options may be whose type is only a text or a number, whichever command has them; that these
#: are all is checked against what the commands say when they are given something else
CHOICES = {
    "--metric": METRICS,
    "--solver": ("auto", *SOLVERS),
    "--learner": ("tabular", "choice", "aden"),
    "--estimate": ("choices", "costs"),
    "--family": ("auto", "distance"),
    "--numbered-from": ("0", "1"),
    "NAME": (*STUDIES, "all"),
}
LEARN = "--population people.toml --interactions 150 --quiet"
LOG = "--log log.csv --entities people.csv --centers today.csv --id name"
ROUND = "--log globe.csv --entities people.csv --centers round.csv --columns lat,lon"
#: what is run, as a user would type it; ``--out`` is put in for all but those that give it
RUNS = [
    "demo --out shown --kappa 0.2 --temperature 0.1 --seed 3 --quiet",
    "fit people.csv -k 2 --columns x,y --weight load --id name --metric sqeuclidean --solver auto "
    "--out placed --seed 3 --quiet",
    "fit people.csv --clusters 2 --columns lat,lon --metric haversine --solver gradient "
    "--kappa 0.3 --gamma 0.5 --zeta 0.5 --temperature 5 --time-budget 5 --overwrite",
    "fit people.csv -k 2 --columns lat,lon --metric sqhaversine --solver armijo "
    "--autonomy matrix.csv",
    "fit people.csv -k 2 --columns x,y --solver fixed_point --autonomy learned.safetensors",
    "predict may people.csv --columns x,y --id name --overwrite",
    "evaluate may/model.safetensors people.csv --columns x,y --weight load --prescribed told "
    "--within 1 --overwrite",
    "compare may june --data people.csv --columns x,y --weight load --overwrite",
    "phase people.csv --columns x,y --weight load --metric sqeuclidean --max-clusters 2 "
    "--kappa 0.3 --gamma 0.5 --zeta 0.5 --temperature 5 --animate --seed 3 --quiet",
    "phase people.csv --columns lat,lon --metric sqhaversine --max-clusters 2 --overwrite "
    "--autonomy matrix.csv --out scales",
    f"learn {LEARN} --clusters 2 --learner tabular --estimate choices --tol 0.5 --exploration 0.5 "
    "--forgetting 0.01 --seed 3",
    f"learn {LEARN} -k 2 --learner tabular --estimate costs --out learned",
    f"learn {LEARN} -k 2 --learner choice --overwrite",
    f"learn {LEARN} -k 2 --learner choice --resume",
    f"learn {LEARN} -k 2 --learner aden --network network.safetensors",
    f"learn {LOG} --columns x,y --metric sqeuclidean --tolerance 0.01 --numbered-from 0 "
    "--skip-unknown",
    f"learn {ROUND} --metric haversine --numbered-from 1",
    f"learn {ROUND} --metric sqhaversine --numbered-from 1",
    f"estimate {LOG} --columns x,y --covariates kind,load --weight load --metric sqeuclidean "
    "--tolerance 0.01 --numbered-from 0 --skip-unknown --region 0,0,2,2 --seed 3 --family auto",
    f"estimate {ROUND} --metric haversine --numbered-from 1 --family distance --out judged",
    f"estimate {ROUND} --metric sqhaversine --numbered-from 1 --family distance --overwrite "
    "--quiet --time-budget 60",
    *(f"reproduce {name} --data sensors.csv --published printed --quick" for name in STUDIES),
    "reproduce all --seed 3 --quiet --out again",
    "reproduce figure1 --resume",
    "reproduce figure1 --overwrite",
]
#: choices of which a command says, in one sentence, that they are not for it
REFUSED = {
    "phase people.csv --columns lat,lon --metric haversine": "use metric='sqhaversine'",
}
#: the beginning of a run, to which a wrong choice is added
SAYS = {
    "fit": "fit people.csv -k 2 --columns x,y",
    "learn": f"learn {LEARN} -k 2",
    "learn --metric": f"learn {LOG} --columns x,y --skip-unknown",
    "learn --numbered-from": f"learn {LOG} --columns x,y --skip-unknown",
    "estimate": f"estimate {LOG} --columns x,y --skip-unknown",
    "phase": "phase people.csv --columns x,y",
}


def commands():
    """Return each command's options and arguments, as typer knows them."""
    return {name: one.params for name, one in typer.main.get_command(app).commands.items()}


def names_of(param):
    """Return how an option is written on the command line; of an argument, its name in capitals."""
    return tuple(param.opts) if param.opts[0].startswith("-") else (param.opts[0].upper(),)


def choices_of(param):
    """Return what an option may be; none if it may be anything."""
    kind = param.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(one.value) for one in kind]
    if get_origin(kind) is Literal:
        return [str(one) for one in get_args(kind)]
    return next((list(CHOICES[name]) for name in names_of(param) if name in CHOICES), [])


def wanted():
    """Return every command, option and choice, as ``("fit", ("--solver",), "auto")``."""
    return [
        (command, names_of(param), choice)
        for command, params in commands().items()
        for param in params
        for choice in (choices_of(param) or [None])
    ]


def given(line):
    """Return the command of a run, and which options and arguments it gives with which values."""
    command, *words = line.split()
    params = commands()[command]
    options = {name: param for param in params for name in names_of(param)}
    arguments = [name for name in options if not name.startswith("-")]
    found = []
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            found.append((arguments.pop(0), word))
        elif options[word].is_flag:
            found.append((word, None))
        else:
            found.append((word, words.pop(0)))
    return command, found


def called(line):
    command, found = given(line)
    return " ".join([command, *(name if v is None else f"{name}={v}" for name, v in found)])


@pytest.fixture
def files(tmp_path, monkeypatch, command):
    """Write all that the runs read."""
    rng = np.random.default_rng(0)
    n, K = 40, 2
    X = np.concatenate([rng.normal(0.0, 0.2, (n // 2, 2)), rng.normal(1.5, 0.2, (n // 2, 2))])
    globe = np.column_stack([51.5 + 0.05 * X[:, 0], 0.05 * X[:, 1]])
    people = pd.DataFrame(
        {
            "name": [f"p{i}" for i in range(n)], "x": X[:, 0], "y": X[:, 1],
            "lat": globe[:, 0], "lon": globe[:, 1], "load": 1.0 + np.arange(n) % 3,
            "kind": np.where(np.arange(n) % 2, "van", "car"), "told": np.arange(n) % 2,
        }
    )  # fmt: skip
    people.to_csv("people.csv", index=False)
    for points, columns, centers, log, metric, first in (
        (X, ["x", "y"], "today.csv", "log.csv", "sqeuclidean", 0),
        (globe, ["lat", "lon"], "round.csv", "globe.csv", "haversine", 1),
    ):
        Y = points[[0, -1]]
        pd.DataFrame(Y, columns=columns).to_csv(centers, index=False)
        crowd = SimulatedPopulation(points, DistanceAutonomy(0.3), metric=metric, random_state=0)
        i, j = rng.integers(0, n, 300), rng.integers(0, K, 300)
        answers = crowd.respond(i, j, Y)
        who = [f"p{one}" for one in i] if first == 0 else i
        frame = pd.DataFrame({"entity": who, "prescribed": j, "realized": answers.realized})
        if first == 0:
            frame["cost"], frame["propensity"] = answers.cost, 0.5
            frame.loc[len(frame)] = ["stranger", 0, 0, 0.1, 0.5]
        else:
            frame[["prescribed", "realized"]] += 1
        frame.to_csv(log, index=False)
    (tmp_path / "people.toml").write_text(
        '[entities]\nfile = "people.csv"\ncolumns = ["x", "y"]\n[autonomy]\nkappa = 0.3\nzeta = 0\n'
    )
    (tmp_path / "matrix.csv").write_text("0.9,0.1\n0.2,0.8\n")
    small = Recipe(hidden_dim=4, ff_dim=4, n_blocks=1, n_heads=1)
    save_network(ADENetwork(2, small.size(), "choices"), tmp_path / "network.safetensors")
    lines = [f"{i},london,{x},{y}" for i, (y, x) in enumerate(globe)]
    (tmp_path / "sensors.csv").write_text("\n".join(["detid,citycode,long,lat", *lines]))
    save_autonomy(DistanceAutonomy(0.3), tmp_path / "learned.safetensors")
    for month, kappa in (("may", 0.2), ("june", 0.3)):
        placed = AutonomyAwareClustering(K, autonomy=DistanceAutonomy(kappa), random_state=0)
        (tmp_path / month).mkdir()
        save_model(placed.fit(people[["x", "y"]]), tmp_path / month / "model.safetensors")
    (tmp_path / "printed").mkdir()
    rows = ["kappa,gamma,zeta,temperature,distortion_ground_truth,aden_gap_percent"]
    rows[0] += ",ignored_gap_percent"
    rows += [",".join(map(str, (*scenario[:4], 1, 2, 3))) for scenario in SCENARIOS]
    (tmp_path / "printed" / "table1.csv").write_text("\n".join(rows))
    head = "kappa,temperature,algorithm1,best_known"
    (tmp_path / "printed" / "london.csv").write_text(f"{head}\n0.1,0.1,2,1\n")
    for name, study in STUDIES.items():
        monkeypatch.setitem(STUDIES, name, short_study(study))
    return tmp_path


def short_study(study):
    """Return a study that does all that the command asks of it, but solves next to nothing."""
    return replace(
        study,
        cases=lambda settings: [Case("one", {"n": 1}, 1.0)],
        solve=lambda params, settings: {"seed": settings.seed},
        present=lambda rows, page: page.table("found", rows),
    )


def out_of(line):
    """Return the folder of a run's results, and the run with it."""
    found = dict(given(line)[1])
    return (found["--out"], line) if "--out" in found else ("res", f"{line} --out res")


def before(line, out, command):
    """Do what has to be done before a run."""
    name, found = given(line)
    options = dict(found)
    if "--resume" in options or ("--overwrite" in options and name == "reproduce"):
        words = line.replace("--resume", "").replace("--overwrite", "")
        code, _, err = command(*words.replace("150", "70").split())
        assert code == 0, err
    elif "--overwrite" in options:
        earlier = out / ("assignments.csv" if name == "predict" else "summary.json")
        earlier.parent.mkdir()
        earlier.write_text("of an earlier run")
        refused = line.replace("--overwrite", "")
        code, _, err = command(*refused.split())
        assert code == 2, err
        assert "--overwrite" in err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", RUNS, ids=called)
def test_a_run_ends_well_and_writes_what_it_says(line, command, files):
    folder, line = out_of(line)
    out = files / folder
    before(line, out, command)
    code, said, err = command(*line.split())
    assert code == 0, err
    name, found = given(line)
    if name == "reproduce":
        studies = STUDIES if dict(found)["NAME"] == "all" else [dict(found)["NAME"]]
        for study in set(studies) - ({"london"} if "all" in line else set()):
            assert f"{folder}/{study}/page.md" in said
            assert json.loads((out / study / f"{study}.json").read_text())["rows"]
        assert (out / "README.md").stat().st_size > 0
        return
    written = re.search(rf"Results in {folder}/: (.*)", said)[1].split(", ")
    assert sorted(written) == sorted(path.name for path in out.iterdir())
    assert all((out / one).stat().st_size > 0 for one in written)
    if name == "predict":
        assert len(pd.read_csv(out / "assignments.csv")) == 40
        return
    assert json.loads((out / "summary.json").read_text())["volition"]
    if name in ("evaluate", "compare"):
        return
    centers = pd.read_csv(out / "centers.csv") if name != "phase" else [0, 0]
    assert len(centers) == (4 if name == "demo" else 2)


@pytest.mark.parametrize("line", REFUSED, ids=called)
def test_a_choice_that_is_not_for_a_command_is_one_sentence(line, command, files):
    code, said, err = command(*line.split())
    assert (code, said) == (2, "")
    assert REFUSED[line] in err
    assert err.count("\n") == 1


def test_every_option_is_run():
    covered = set()
    for line in (*RUNS, *REFUSED):
        command, found = given(out_of(line)[1] if "--out" not in line else line)
        covered |= {(command, name, value) for name, value in found}
        covered |= {(command, name, None) for name, _ in found}
    missing = [
        f"{command} {'/'.join(names)}{'' if choice is None else f' {choice}'}"
        for command, names, choice in wanted()
        if not any((command, name, choice) in covered for name in names)
    ]
    assert not missing, f"no run in {__file__} has {missing}"


def test_the_only_option_before_a_command_shows_the_version(command):
    assert [names_of(param) for param in typer.main.get_command(app).params] == [("--version",)]
    code, said, _ = command("--version")
    assert code == 0
    assert said.startswith("volition ")


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option)
        for name, params in commands().items()
        for param in params
        for option in names_of(param)
        if option in CHOICES
    ],
)
def test_these_are_all_the_choices(name, option, command, files):
    """A choice that a command knows and this file does not would never be run."""
    words = SAYS.get(f"{name} {option}", SAYS.get(name, ""))
    words = f"{words} {option} 7" if option.startswith("-") else f"{name} 7"
    code, _, err = command(*words.split())
    assert code == 2
    allowed = re.search(r"(?:must be|choose)(?: one of)? (.*)", err.partition(", got")[0])[1]
    said = set(re.findall(r"'(\w+)'", allowed)) or set(re.findall(r"\w+", allowed)) - {"or"}
    assert said == set(CHOICES[option])
