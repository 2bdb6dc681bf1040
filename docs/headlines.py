"""Put the headline figures of docs/results into docs/paper.md, between its two marks.

Run: python docs/headlines.py (after `make results`). No figure is typed by hand.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
BEGIN, END = "<!-- headlines: made by docs/headlines.py -->", "<!-- end of headlines -->"


def facts(name: str) -> dict:
    """Return the facts of a study, of a full run."""
    path = RESULTS / name / f"{name}.json"
    if not path.is_file():
        sys.exit(f"{path.relative_to(ROOT)} is not there: run `make results` first.")
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["quick"]:
        sys.exit(f"{path.relative_to(ROOT)} is of a quick run; headlines come from full ones.")
    return content["facts"]


def rows() -> list[tuple[str, str, str, str]]:
    """Return what, published, ours, and the study."""
    table, london, grid = facts("table1"), facts("london"), facts("grid")
    phase, theory, efficiency = facts("phase"), facts("theory"), facts("efficiency")
    found = [
        (
            f"Four groups, the paper's 18 scenarios, {name}: cost above the best for known p, "
            "mean, median, worst",
            _gaps(table[said]) if said else "",
            _gaps(table[name]),
            "table1",
        )
        for name, said in (
            ("autonomy ignored", "published: ignored, %"),
            ("ADEN", "published: ADEN, %"),
            ("choice model", None),
        )
    ]
    found.append(
        (
            "All 20 scenarios, ADEN and choice model",
            _gaps(table["published: ADEN, %"], "all 20"),
            f"{_gaps(table['ADEN'], 'all 20')}; {_gaps(table['choice model'], 'all 20')}",
            "table1",
        )
    )
    off = table["ignored, largest difference to the published column, points"]
    truth = table["ground truth, largest difference to the published one, %"]
    found.append(
        (
            'Reproduced: column "ignored", ground truth',
            "",
            f"within {off:.3f} points, within {truth:.4f} %",
            "table1",
        )
    )
    cases = [case for case in london if case.startswith("kappa=")]
    for method in ("ADEN", "choice model", "exact gradient"):
        there = [london[case]["ADEN"]["published against Algorithm 1"] for case in cases]
        here = [f"{london[case][method]['against Algorithm 1, %']:+.1f} %" for case in cases]
        found.append(
            (
                f"London, K = 25, {method} against Algorithm 1 ({'; '.join(cases)})",
                "; ".join(there) if method == "ADEN" else "",
                "; ".join(here),
                "london",
            )
        )
    lasting = ", ".join(map(str, phase["numbers of centres that last, critical schedule"]))
    broken = theory["states that break Theorem 3's bound"]
    found += [
        (
            "The appendix's 4 x 4 grid, ADEN: cost above the best for known p, mean and worst",
            "pictures only",
            f"{grid['mean gap, %']:.3f}, {grid['worst gap, %']:.3f} %",
            "grid",
        ),
        (
            "Answers that a run on the four groups takes, at most",
            f"{efficiency['answers of the published network'] / 1e9:.1f} billion",
            f"ADEN {table['most answers, ADEN']:,}, choice model "
            f"{table['most answers, choice model']:,}",
            "table1",
        ),
        (
            "Numbers of distinct centres of the nested groups that last",
            "1, 4, 8, 16",
            f"{lasting}; along the published schedule splits are seen within "
            f"{phase['largest difference of seen to predicted, %']:.1f} % of Theorem 2",
            "phase",
        ),
        ("States that break Theorem 3's bound", "none", f"{broken}", "theory"),
    ]
    return found


def _gaps(line: dict, of: str = "the paper's 18") -> str:
    values = [line[f"{of}: {what}, %"] for what in ("mean", "median", "worst")]
    return f"{', '.join(f'{value:.3g}' for value in values)} %"


def main() -> None:
    """Rewrite the block."""
    lines = ["| | published | here | `volition reproduce` |", "|---|---|---|---|"]
    lines += [f"| {what} | {there} | {here} | `{name}` |" for what, there, here, name in rows()]
    path = ROOT / "docs" / "paper.md"
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        sys.exit(f"docs/paper.md must hold the marks {BEGIN} and {END}.")
    block = "\n".join(lines)
    path.write_text(f"{before}{BEGIN}\n{block}\n{END}{after}", encoding="utf-8")
    print(f"{len(lines) - 2} headlines in docs/paper.md")


if __name__ == "__main__":
    main()
