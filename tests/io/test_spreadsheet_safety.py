"""Names and ids from files in spreadsheets and pictures: shown as they are, never executed."""

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volition import anneal
from volition.choices import Interval, PlanCost
from volition.core.problem import Problem
from volition.datasets import load_four_groups
from volition.io.results import plain_text, safe_text, write_csv
from volition.plotting import (
    ClusteringDisplay,
    animate,
    plot_phase,
    plot_plan_costs,
    plot_relocation,
)
from volition.plotting.clustering import clustering_info
from volition.plotting.text import save_figure

# -- spreadsheets ---------------------------------------------------------------------------------


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\tx", "\rx", "'=1", "＝1+1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_executed(tmp_path, text):
    write_csv(tmp_path / "a.csv", ["id", text], iter([[text, -1.5], ["O'Neill", 2]]))
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == ["id", f"'{text}"]
    assert rows[1] == [f"'{text}", "-1.5"]
    assert rows[2] == ["O'Neill", "2"]


@pytest.mark.parametrize("text", ["-5", "+3.25", "-1e-9", "17", "a=b", "x-y", "", "'tis", "ä"])
def test_harmless_text_stays_as_it_is(text):
    assert safe_text(text) == text


@given(st.text(alphabet="'=+-@\t\r\n,;\"a1 .＝é", max_size=8))
@settings(max_examples=500, database=None)
def test_safe_text_can_be_undone_and_executes_nothing(text):
    safe = safe_text(text)
    assert plain_text(safe) == text
    try:
        float(safe)
    except ValueError:
        assert safe[:1] not in {*"=+-@\t\r\n＝"}


@given(st.lists(st.text(alphabet="'=+-@\t\r\n,;\"a1 ", max_size=6), min_size=1, max_size=4))
@settings(max_examples=200, database=None)
def test_rows_stay_rows(tmp_path_factory, cells):
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    write_csv(path, [f"c{i}" for i in range(len(cells))], iter([cells, cells]))
    with open(path, newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    assert [[plain_text(cell) for cell in row] for row in rows[1:]] == [cells, cells]
    # A reader that ends lines at carriage returns, as spreadsheets do, sees the same cells.
    assert path.read_bytes().count(b"\r") == 2 * sum(cell.count("\r") for cell in cells)


def test_strange_names_go_all_the_way_and_back(command, tmp_path):
    rng = np.random.default_rng(0)
    ids = ["=cmd|'/C calc'!A0", "+1a", "-b", "@c", "a\rb", "\x1b[31mred", "plain", "-7"]
    with open(tmp_path / "t.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\r\n")
        writer.writerow(["who", "=x", r"$\frac{$"])
        writer.writerows([name, *rng.normal(3 * (n % 2), 1, 2)] for n, name in enumerate(ids))
    code, _, err = command("fit", "t.csv", "-k", 2, "--id", "who", "--out", "res")
    assert code == 0, err
    with open(tmp_path / "res" / "assignments.csv", newline="", encoding="utf-8") as stream:
        found = [row[0] for row in csv.reader(stream)][1:]
    assert [plain_text(name) for name in found] == ids
    assert not any(name[0] in "=+@" for name in found)
    with open(tmp_path / "res" / "centers.csv", newline="", encoding="utf-8") as stream:
        assert next(csv.reader(stream))[1:3] == ["'=x", r"$\frac{$"]
    # What was written is read again under the names that it had.
    with open(tmp_path / "log.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\r\n")
        writer.writerow(["entity", "prescribed", "realized"])
        for n in range(200):
            writer.writerow([found[n % len(found)], n % 2, (n + (n % 5 == 0)) % 2])
    words = ("--entities", "t.csv", "--id", "who", "--centers", "res/centers.csv", "--quiet")
    code, out, err = command("estimate", "--log", "log.csv", *words, "--out", "e")
    assert code == 0, err
    assert "200 choices of 8 entities" in out


# -- pictures -------------------------------------------------------------------------------------

STRANGE = [r"$\frac{$", "$a$ and $b", "a\x1b[31m", "tab\there", "\n", "x" * 5000, "東京", "^_{}\\"]


@pytest.mark.parametrize("words", [("fit", "-k", 2), ("phase", "--max-clusters", 2, "--quiet")])
@pytest.mark.parametrize("names", [(r"$\frac{$", "x" * 5000), ("$a$ and $b", "a\x1b[31m\n東")])
def test_no_name_spoils_a_picture(command, tmp_path, words, names):
    with open(tmp_path / "t.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\r\n")
        writer.writerows([names, [0, 0], [1, 0.5], [5, 6], [6, 5], [0, 1]])
    code, _, err = command(words[0], "t.csv", *words[1:], "--out", "res")
    assert (code, err) == (0, "")
    picture = {"fit": "clusters.png", "phase": "phase.png"}[words[0]]
    assert (tmp_path / "res" / picture).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", STRANGE)
def test_every_name_can_be_drawn(tmp_path, name):
    X = load_four_groups().data[::100]
    info = clustering_info(X, X[:2], np.full((len(X), 2), 0.5), names=[name, name], title=name)
    save_figure(ClusteringDisplay(info).plot().figure_, tmp_path / "a.png", bbox_inches="tight")
    assert 5_000 < (tmp_path / "a.png").stat().st_size < 200_000


def test_pictures_show_names_as_they_are(tmp_path):
    X = load_four_groups().data[::100]
    names = [r"$\frac{$", "b\x1b"]
    info = clustering_info(X, X[:2], np.full((len(X), 2), 0.5), names=names, title="$t$ $")
    display = ClusteringDisplay(info).plot()
    assert display.ax_.get_xlabel() == r"$\frac{$"
    assert display.ax_.get_ylabel() == r"b\x1b"
    display.figure_.savefig(tmp_path / "a.png")
    ax = plot_relocation(X, X[:2], X[2:4], np.zeros(len(X), int), names=names)
    ax.figure.savefig(tmp_path / "b.png")
    known = Interval(1.0, 0.9, 1.1)
    ax = plot_plan_costs([PlanCost("$today$", known, known, known, known, known)], unit="$/km$")
    ax.figure.savefig(tmp_path / "c.png")
    assert ax.get_yticklabels()[0].get_text() == "$today$"
    problem = Problem(X)
    path = anneal(problem, 2, random_state=0)
    plot_phase(problem, path, title="$x_{$ $").savefig(tmp_path / "d.png")
    animate(problem, path, tmp_path / "e.gif", names=names, max_frames=2)
