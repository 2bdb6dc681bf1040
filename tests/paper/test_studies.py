"""``volition reproduce``: runs that can be stopped, and figures against the paper's own."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

import volition
from volition import DistanceAutonomy
from volition.datasets import load_four_groups
from volition.paper import STUDIES, Case, Settings, Study, run, together
from volition.paper.journal import JOURNAL
from volition.paper.methods import LEARNERS, gap, place
from volition.paper.published import ANSWERS, LONDON_ANSWERS, SCHEDULE, SUMMARY, TABLE1


def counting(stop_at=None):
    """A study of five cases that writes down which it has solved, and may be broken off."""
    solved = []

    def solve(params, settings):
        if params["n"] == stop_at:
            raise KeyboardInterrupt
        solved.append(params["n"])
        return {"square": params["n"] ** 2 + settings.seed}

    def present(rows, page):
        page.text("Squares.")
        page.table("squares", [{"n": row["n"], "square": row["square"]} for row in rows])
        page.fact("sum", sum(row["square"] for row in rows))

    cases = [Case(f"case {n}", {"n": n}, 1.0) for n in range(5)]
    return Study("squares", "Squares", lambda settings: cases, solve, present), solved


def test_a_run_that_was_stopped_goes_on_where_it_stopped(tmp_path):
    study, solved = counting(stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        run(study, tmp_path, Settings())
    assert solved == [0, 1, 2]
    assert not (tmp_path / "page.md").exists()
    # As after a kill in the middle of a line.
    with open(tmp_path / JOURNAL, "a", encoding="utf-8") as stream:
        stream.write('{"name": "case 3", "n": 3, "squa')
    study, solved = counting()
    told = []
    run(study, tmp_path, Settings(), resume=True, on_case=lambda *facts: told.append(facts[1:]))
    assert solved == [3, 4]
    assert [(done, total) for done, total, _, _ in told] == [(3, 5), (4, 5), (5, 5)]
    assert told[0][3] == pytest.approx(2.0)  # seconds left, as expected
    content = json.loads((tmp_path / "squares.json").read_text())
    assert content["facts"]["sum"] == 30
    assert content["volition"] == volition.__version__
    again, solved = counting()
    run(again, tmp_path, Settings(), resume=True)
    assert solved == []
    run(again, tmp_path, Settings())  # a finished run is done anew
    assert solved == [0, 1, 2, 3, 4]


def test_a_run_is_not_mixed_with_one_of_other_settings(tmp_path):
    study, solved = counting()
    run(study, tmp_path, Settings(quick=True))
    with pytest.raises(ValueError, match="begun with quick True, seed 0, not with quick False, se"):
        run(study, tmp_path, Settings(seed=3), resume=True)
    run(study, tmp_path, Settings())
    with pytest.raises(ValueError, match="holds a full run; --restart replaces it by a quick one"):
        run(study, tmp_path, Settings(quick=True))
    assert len(solved) == 10


def test_a_stopped_run_is_not_thrown_away_unasked(tmp_path):
    study, _ = counting(stop_at=2)
    with pytest.raises(KeyboardInterrupt):
        run(study, tmp_path, Settings())
    study, solved = counting()
    with pytest.raises(ValueError, match="stopped after 2 cases; --resume goes on"):
        run(study, tmp_path, Settings())
    assert solved == []
    run(study, tmp_path, Settings(), restart=True)
    assert solved == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda lines: [b"[]", *lines[1:]], "line 1 is damaged"),
        (lambda lines: [b"{}", *lines[1:]], "line 1 is damaged"),
        (lambda lines: [lines[0], b"7", *lines[1:]], "line 2 is damaged"),
        (lambda lines: [lines[0], b'"name"', *lines[1:]], "line 2 is damaged"),
        (lambda lines: [lines[0], lines[1][:9], *lines[2:]], "line 2 is damaged"),
        (lambda lines: [*lines[:2], b'{"name": []}', *lines[3:]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], b"\xff\xfe", *lines[3:]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], b"[" * 100_000, *lines[3:]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], b'{"name": "case 1"}', *lines[3:]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], lines[2].replace(b"1", b"3", 1), *lines[3:]], "line 3"),
    ],
)
@pytest.mark.parametrize("resume", [True, False])
def test_a_damaged_journal_is_one_sentence(command, monkeypatch, tmp_path, damage, says, resume):
    study, _ = counting(stop_at=3)
    monkeypatch.setattr("volition.cli.reproduce.run.STUDIES", {"squares": study})
    words = ("reproduce", "squares", "--quiet", "--out", "r")
    assert command(*words)[0] == 130
    journal = tmp_path / "r" / "squares" / JOURNAL
    damaged = b"\n".join(damage(journal.read_bytes().split(b"\n")))
    journal.write_bytes(damaged)
    study, _ = counting()
    monkeypatch.setattr("volition.cli.reproduce.run.STUDIES", {"squares": study})
    code, _, err = command(*words, *(["--resume"] if resume else []))
    assert code == 2
    assert err.startswith("volition: r/squares/cases.jsonl")
    assert err.count("\n") == 1
    assert says in err
    assert journal.read_bytes() == damaged
    assert command(*words, "--overwrite")[0] == 0


def test_other_data_are_not_resumed(monkeypatch, tmp_path):
    lines = ["detid,citycode,long,lat", *(f"{n},london,{n * n},{7 * n % 5}" for n in range(9))]
    for name, last in (("a.csv", "9,london,0,1"), ("b.csv", "9,london,3,1")):
        (tmp_path / name).write_text("\n".join([*lines, last]))
    study, _ = counting()
    study = replace(study, needs_data=True)
    run(study, tmp_path / "r", Settings(data=tmp_path / "a.csv"))
    with pytest.raises(ValueError, match=r"was begun with data [0-9a-f]+, not with data"):
        run(study, tmp_path / "r", Settings(data=tmp_path / "b.csv"), resume=True)


def test_a_page_names_its_command_and_holds_its_tables(tmp_path):
    study, _ = counting()
    run(study, tmp_path / "squares", Settings(quick=True, seed=7))
    text = (tmp_path / "squares" / "page.md").read_text()
    assert "volition reproduce squares --quick --seed 7" in text
    assert "| 4 | 23 |" in text
    with open(tmp_path / "squares" / "squares.csv", encoding="utf-8") as stream:
        assert [int(row["square"]) for row in csv.DictReader(stream)] == [7, 8, 11, 16, 23]
    (tmp_path / "squares" / "page.md").write_text("# Squares\n\n![a](b.png)\n")
    joined = together(tmp_path, [study, STUDIES["figure1"]]).read_text()
    assert "## Squares\n\n![a](squares/b.png)" in joined
    assert "- [Squares](#squares)" in joined
    assert "not run (`volition reproduce figure1`)" in joined


def test_printed_summaries_are_those_of_the_table():
    for key, (median, mean) in SUMMARY.items():
        printed = [getattr(s, key) for s in TABLE1 if getattr(s, key) is not None]
        assert len(printed) == 18
        assert np.median(printed) == pytest.approx(median, abs=0.01)
        assert np.mean(printed) == pytest.approx(mean, abs=0.01)
    assert pytest.approx(5.9e9, rel=0.01) == ANSWERS
    assert LONDON_ANSWERS > ANSWERS


@pytest.mark.parametrize("number", [0, 9, 14, 18])
def test_ignoring_autonomy_costs_what_the_paper_says(number):
    X = load_four_groups().data
    autonomy = DistanceAutonomy(*TABLE1[number][:4])
    best = place("exact", X, 4, autonomy, 0, SCHEDULE)["distortion"]
    ignored = place("ignored", X, 4, autonomy, 0, SCHEDULE)
    assert gap(ignored, best) == pytest.approx(TABLE1[number].ignored, abs=0.05)


def test_centres_without_influence_meet_at_the_centroid(tmp_path):
    run(STUDIES["figure1"], tmp_path, Settings(quick=True))
    rows = json.loads((tmp_path / "figure1.json").read_text())["rows"]
    X = load_four_groups().data
    np.testing.assert_allclose(rows[1]["centers"], np.tile(X.mean(0), (4, 1)), atol=1e-4)
    groups = [X[load_four_groups().target == g].mean(0) for g in range(4)]
    for center in rows[0]["centers"]:
        assert min(np.linalg.norm(center - g) for g in np.array(groups)) < 0.01
    for name in ("figure1.png", "figure1.svg", "figure1.csv", "page.md", JOURNAL):
        assert (tmp_path / name).stat().st_size > 0


def test_theorems_hold(tmp_path):
    theory, settings = STUDIES["theory"], Settings(quick=True)
    by = {case.name: case.params for case in theory.cases(settings)}
    fixed = theory.solve(by["Theorem 1, p fixed, fixed point"], settings)
    assert fixed["step_against_theorem"] < 1e-12
    assert np.diff(fixed["free_energy"]).max() <= 1e-12
    moving = theory.solve(by["Theorem 1, p moving, fixed point"], settings)
    exact = theory.solve(by["Theorem 1, p moving, exact"], settings)
    # Algorithm 1 holds p fixed: it stops where the gradient is not nought, and higher.
    assert moving["gradient_at_the_end"] > 100 * exact["gradient_at_the_end"]
    assert exact["free_energy"][-1] < moving["free_energy"][-1]
    split = theory.solve(by["Theorem 2, K=4, 0.4 of (K-1)/K"], settings)
    assert split["predicted"] == pytest.approx(split["closed_form"], rel=1e-6)
    assert split["seen"] == pytest.approx(split["closed_form"], rel=0.02)
    never = theory.solve(by["Theorem 2, K=4, 1.0 of (K-1)/K"], settings)
    assert never["closed_form"] is None
    assert never["seen"] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["table2"], "There is no study 'table2'; choose figure1, table1"),
        (["london"], "london needs the positions of London's traffic sensors: --data PATH"),
        (["london", "--data", "no.mat"], "No such file: no.mat"),
        (["table1", "--published", "."], "--published . has no file table1.csv"),
        (["figure1", "--published", "nowhere"], "--published nowhere is no folder"),
        (["figure1", "--seed", "-1"], "--seed must be 0 or more, got -1"),
        (["london", "--data", "broken.mat"], "broken.mat cannot be read as a MATLAB file"),
        (["london", "--data", "broken.csv"], "broken.csv, line 2: long and lat must be numbers"),
        (["all", "--data", "no.mat"], "No such file: no.mat"),
        (
            ["figure1", "--resume", "--restart"],
            "--resume keeps what is done and --restart does not",
        ),
    ],
)
def test_bad_input_is_one_sentence(command, monkeypatch, tmp_path, words, says):
    (tmp_path / "broken.mat").write_bytes(b"no MATLAB file")
    (tmp_path / "broken.csv").write_text("detid,citycode,long,lat\na,london,west,51\n")
    code, out, err = command("reproduce", *words)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
    assert out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.csv", "broken.mat"]


def test_the_command_says_how_long_and_where(command, monkeypatch, tmp_path):
    code, out, err = command("reproduce", "figure1", "--quick", "--out", "r")
    assert code == 0
    assert "figure1: about 6 s on two cores." in out
    assert "r/figure1/page.md" in out
    assert "[1/3] figure1: b; about 6 s left" in err
    code, _, err = command("reproduce", "figure1", "--quick", "--out", "r", "--resume")
    assert (code, err) == (0, "")


def test_all_leaves_out_what_has_no_data_and_joins_the_pages(command, monkeypatch, tmp_path):
    study, _ = counting()
    monkeypatch.setattr(
        "volition.cli.reproduce.run.STUDIES", {"squares": study, "london": STUDIES["london"]}
    )
    code, out, _ = command("reproduce", "all", "--out", "r", "--quiet")
    assert code == 0
    assert "london: left out, because it needs --data." in out
    joined = (tmp_path / "r" / "README.md").read_text()
    assert "## Squares" in joined
    assert "London's traffic sensors, K = 25: not run" in joined


def test_a_stopped_command_says_how_to_go_on(command, monkeypatch, tmp_path):
    study, _ = counting(stop_at=2)
    monkeypatch.setattr("volition.cli.reproduce.run.STUDIES", {"squares": study})
    code, out, _ = command("reproduce", "squares", "--out", "r")
    assert code == 130
    assert "the same command with --resume goes on" in out


def test_london_on_a_small_town(monkeypatch, tmp_path):
    """All of the study but the learners, which take a minute."""
    rng = np.random.default_rng(0)
    lines = ["detid,citycode,long,lat"]
    lines += [f"{n},london,{x},{y}" for n, (x, y) in enumerate(rng.random((50, 2)))]
    file = tmp_path / "detectors_public.csv"
    file.write_text("\n".join(lines))
    monkeypatch.setattr(
        "volition.paper.london.SECONDS",
        {"algorithm1": 1.0, "exact": 1.0, "ignored": 1.0, "kmeans": 1.0},
    )
    monkeypatch.setattr("volition.paper.london.K", 4)
    monkeypatch.setattr("volition.paper.london.SWEEP", (0.0, 0.5))
    run(STUDIES["london"], tmp_path / "r", Settings(data=file))
    facts = json.loads((tmp_path / "r" / "london.json").read_text())["facts"]
    for setting in (facts[f"kappa={kappa}, T={T}"] for kappa in (0.1, 0.5) for T in (0.1, 0.01)):
        assert setting["exact gradient"]["D"] <= setting["Algorithm 1"]["D"] * 1.0001
        assert setting["exact gradient"]["D"] <= setting["k-means"]["D"] * 1.0001
    near = "mean distance to the nearest other centre"
    assert facts["sweep"][1][near] < facts["sweep"][0][near]  # override draws centres together


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", ["table1", "grid", "efficiency"])
def test_pages_of_studies_whatever_they_find(monkeypatch, tmp_path, name, quick):
    """All that a study does but solving its cases."""
    X, rng = load_four_groups().data, np.random.default_rng(0)

    def solve(params, settings):
        learns = params.get("method") in LEARNERS or params.get("learner") is not None
        return {
            "distortion": 0.1 + 0.01 * rng.random(),
            "centers": X[rng.integers(0, len(X), 4)].tolist(),
            "answers": 6000 if learns else None,
            "seconds": 1.0,
        }

    study = replace(STUDIES[name], solve=solve)
    run(study, tmp_path / name, Settings(quick=quick))
    text = (tmp_path / name / "page.md").read_text()
    assert f"volition reproduce {name}" in text
    assert ("A quick run" in text) == quick
    assert "nan" not in text
    facts = json.loads((tmp_path / name / f"{name}.json").read_text())["facts"]
    assert facts
    for picture in (tmp_path / name).glob("*.svg"):
        assert picture.with_suffix(".png").stat().st_size > 10_000
