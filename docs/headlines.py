"""Put the headline figures of docs/results into the README, between its two marks.

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
    said = {
        key: table[f"published: {key} (18 rows of the paper)"]
        for key in ("ADEN", "autonomy ignored")
    }
    found = [
        (
            f"Four groups, {name}: gap to the best for known p, mean, median and worst",
            _gaps(said[key]) if key else "",
            f"{_gaps(table[name])}{_effort(table[name])}",
            "table1",
        )
        for name, key in (
            ("autonomy ignored", "autonomy ignored"),
            ("ADEN", "ADEN"),
            ("choice model", None),
        )
    ]
    cases = list(london)
    for method in ("ADEN", "choice model", "exact gradient"):
        published = [london[case]["ADEN"]["published, %"] for case in cases]
        ours = [london[case][method]["against Algorithm 1, %"] for case in cases]
        found.append(
            (
                f"London, K = 25, {method} against Algorithm 1 ({'; '.join(cases)})",
                _list(published) if method == "ADEN" else "",
                _list(ours),
                "london",
            )
        )
    found += [
        (
            "The appendix's 4 x 4 grid, ADEN: gap to the best for known p, mean and worst",
            "pictures only",
            f"{grid['mean gap, %']:.3f}, {grid['worst gap, %']:.3f} %",
            "grid",
        ),
        (
            "Answers that a run on the four groups takes",
            f"{efficiency['answers of the published network'] / 1e9:.1f} billion",
            f"ADEN {table['ADEN']['most answers']:,}, choice model "
            f"{table['choice model']['most answers']:,}",
            "table1",
        ),
        (
            "Numbers of distinct centres of the nested groups that last",
            "1, 4, 8, 16",
            f"{', '.join(map(str, phase['numbers of centres that last, critical schedule']))}; "
            f"splits within {phase['largest difference of seen to predicted, %']:.1f} % of their "
            "prediction",
            "phase",
        ),
        (
            "Theorem 3's bound",
            "holds",
            f"broken in {theory['states that break Theorem 3' + chr(39) + 's bound']} states",
            "theory",
        ),
    ]
    return found


def _gaps(line: dict) -> str:
    return (
        f"{line['mean gap, %']:.3g}, {line['median gap, %']:.3g}, {line['worst run, %']:.3g} % "
        f"({line['scenarios']} scenarios)"
    )


def _effort(line: dict) -> str:
    return f"; at most {line['most answers']:,} answers" if line["most answers"] else ""


def _list(values: list[float]) -> str:
    return f"{', '.join(f'{value:+.1f}' for value in values)} %"


def main() -> None:
    """Rewrite the block."""
    lines = ["| | published | here | `volition reproduce` |", "|---|---|---|---|"]
    lines += [f"| {what} | {there} | {here} | `{name}` |" for what, there, here, name in rows()]
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        sys.exit(f"README.md must hold the marks {BEGIN} and {END}.")
    block = "\n".join(lines)
    path.write_text(f"{before}{BEGIN}\n{block}\n{END}{after}", encoding="utf-8")
    print(f"{len(lines) - 2} headlines in README.md")


if __name__ == "__main__":
    main()
