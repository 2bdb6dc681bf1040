"""What is tried: for every reader a strategy of inputs, and where the truth is known, the truth.

A `Case` is files, a call that reads them, and what must come of it. A reader may refuse a case in
one sentence; what it must not do is read something else than what is there.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import safetensors.numpy
import typer
from hypothesis import strategies as st
from safetensors import safe_open

import volition.cli.main
from volition import (
    AutonomyAwareClustering,
    ChoiceAutonomy,
    ChoiceClustering,
    DistanceAutonomy,
    FixedAutonomy,
    SimulatedPopulation,
    TabularClustering,
    load_autonomy,
    load_model,
    save_autonomy,
    save_model,
)
from volition.estimators import Learner
from volition.io.checked_files import checksum
from volition.io.results import plain_text
from volition.io.tables import read_table
from volition.learning.networks import ADENetwork, NetworkSize, load_network, save_network
from volition.metrics import distortion
from volition.paper import Case as ReproduceCase
from volition.paper import Settings, Study, run
from volition.paper.journal import JOURNAL

#: the truth about an input that can only be refused
REFUSED = "to be refused"


class Captured(BaseException):
    """What a command has read, at the moment at which it would begin to compute."""


@dataclass
class Case:
    """Files, a call that reads them in the present folder, and what must come of it."""

    files: dict[str, bytes]
    call: Callable[[], Any]
    #: None where it is not known
    truth: Any = None
    #: words of the command line, to be shown
    words: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Reader:
    """A name, a strategy of cases, how many seconds one may take, how many are tried at a time."""

    name: str
    cases: Any
    seconds: float = 5.0
    batch: int = 100


# -- commands, up to the moment at which they would compute ---------------------------------------

_command = typer.main.get_command(volition.cli.main.app)  # building it anew takes most of the time
_PATCHED = (
    (AutonomyAwareClustering, "fit"),
    (ChoiceClustering, "fit_log"),
    (Learner, "fit"),
)


def until_it_computes(words: tuple[str, ...], seen: Callable[..., Any]) -> Any:
    """Run a command; return what ``seen`` makes of the arguments with which it would compute."""

    def capture(*args: Any, **given: Any) -> None:
        raise Captured(args, given)

    kept = [(owner, name, getattr(owner, name)) for owner, name in _PATCHED]
    try:
        for owner, name, _ in kept:
            setattr(owner, name, capture)
        whole_run(words)
    except Captured as captured:
        return seen(*captured.args[0], **captured.args[1])
    finally:
        for owner, name, method in kept:
            setattr(owner, name, method)
    raise AssertionError(f"{words} came to no end that is known")


def whole_run(words: tuple[str, ...]) -> None:
    """Run a command to its end; raise SystemExit with its code unless that is 0."""
    try:
        _command(args=list(words), prog_name="volition", standalone_mode=True)
    except SystemExit as end:
        if end.code:
            raise


# -- pieces ---------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.integers(-1000, 1000).map(float),
    st.floats(-1e6, 1e6, allow_subnormal=False),
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
)
#: what names and ids are made of, all that has ever made trouble among it
LETTERS = st.sampled_from(list("abxyz019 .,;'\"=+-@$_^{}\\|#%/()[]äß東é\t\r\n\x1b\x00\u202e\ufeff"))
TEXT = st.text(LETTERS, max_size=8)
PLAIN_NAMES = st.text(st.sampled_from("abcdefgh_"), min_size=1, max_size=5)


def spelled(draw: Any, x: float) -> str:
    """Return one of the ways to write a number that all mean exactly this one."""
    way, x = draw(st.integers(0, 5)), float(x)
    text = (repr(x), f"{x:.17g}", f"{x:.17e}", repr(x), f" {x!r}", f"{x!r} ")[way]
    return f"+{text}" if way == 3 and x >= 0 else text


def is_number(text: str) -> bool:
    """Return whether Python takes it for a number, as the readers do."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def written(draw: Any, header: list[str], rows: list[list[str]]) -> bytes:
    """Return a CSV file: delimiter, quotes, ends of lines, blank lines and a mark as drawn."""
    delimiter = draw(st.sampled_from(",;\t"))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    everything = draw(st.booleans())
    blank = draw(st.sampled_from([0, 0, 0, 2, 3]))
    lines = []
    for number, row in enumerate([header, *rows]):
        cells = []
        for cell in row:
            must = any(c in cell for c in ',;\t"\r\n') or (cell == "" and len(row) == 1)
            quoted = '"' + cell.replace('"', '""') + '"'
            cells.append(quoted if must or everything else cell)
        lines.append(delimiter.join(cells))
        if blank and number % blank == 1:
            lines.append("")
    text = end.join(lines) + (end if draw(st.booleans()) else "")
    mark = "\ufeff" if draw(st.booleans()) else ""
    return (mark + text).encode()


def damaged(draw: Any, whole: bytes, most: int = 4) -> bytes:
    """Return bytes with some of them flipped, gone, doubled, or replaced."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        how = draw(st.integers(0, 5))
        if how <= 1 and content:
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif how == 2:
            del content[at:]
        elif how == 3:
            del content[at : at + draw(st.integers(1, 8))]
        elif how == 4:
            content[at:at] = content[at : at + draw(st.integers(1, 40))]
        else:
            content[at:at] = draw(st.sampled_from(JUNK))
    return bytes(content)


JUNK = [
    b"\x00", b"\xff\xfe", b"\x1b[2J", b'"', b"'", b",", b";", b"\t", b"\n", b"\r", b"nan", b"inf",
    b"-", b"1e999", b"1" * 400, b"=1+1", b"[", b"{", b"\xef\xbb\xbf", b"\xe2\x80\xae", b"1_0", b"#",
]  # fmt: skip


@st.composite
def columns_of_numbers(draw: Any, names: Any = TEXT, most: int = 3) -> tuple[list[str], np.ndarray]:
    """Draw names of columns, no two alike as a reader sees them, and their numbers."""
    size = draw(st.integers(1, most))
    found: list[str] = []
    for name in draw(st.lists(names, min_size=size, max_size=size + 2)):
        name = name.strip()
        as_read = plain_text(name).strip()
        if name and as_read and as_read not in [plain_text(one).strip() for one in found]:
            found.append(name)
    found = found or ["x"]
    n = draw(st.integers(1, 4))
    values = draw(st.lists(NUMBERS, min_size=n * len(found), max_size=n * len(found)))
    return found, np.array(values).reshape(n, len(found))


# -- tables ---------------------------------------------------------------------------------------


def read(path: str, columns: Any, weight: Any, id_column: Any) -> Any:
    """Read a table; return what it holds, to be compared."""
    table = read_table(Path(path), columns, weight, id_column)
    return facts(table.columns, table.values, table.weight, table.ids)


def facts(columns: Any, values: Any, weight: Any, ids: Any) -> Any:
    """Return what a table holds, as it can be compared."""
    return (
        list(columns),
        np.asarray(values, dtype=float).tolist(),
        None if weight is None else np.asarray(weight, dtype=float).tolist(),
        None if ids is None else list(ids),
    )


@st.composite
def csv_tables(draw: Any) -> Case:
    """Draw a CSV table of known numbers, among columns of text, and read all or some of it."""
    names, values = draw(columns_of_numbers())
    n = len(values)
    weight = draw(st.none() | st.just(draw(st.lists(NUMBERS, min_size=n, max_size=n))))
    ids = draw(st.none() | st.lists(TEXT, min_size=n, max_size=n))
    comments = draw(st.none() | st.lists(TEXT, min_size=n, max_size=n))
    columns: dict[str, list[str]] = {
        name: [spelled(draw, x) for x in values[:, i]] for i, name in enumerate(names)
    }
    taken = {plain_text(name).strip() for name in names}
    others = {"w w": weight, "id": ids, "note": comments}
    for name, cells in others.items():
        if cells is not None and name not in taken:
            plain = name == "w w"
            columns[name] = [spelled(draw, x) for x in cells] if plain else list(cells)
        else:
            others[name] = None
    order = draw(st.permutations(list(columns)))
    if all(is_number(name) for name in order) or any(
        not any(columns[name][i].strip() for name in order) for i in range(n)
    ):
        order = [*order, "mark"]  # a header of numbers, or a row of nothing, is not one
        columns["mark"] = ["m"] * n
    rows = [[columns[name][i] for name in order] for i in range(n)]
    chosen = [plain_text(name).strip() for name in names]
    weight_name = "w w" if others["w w"] is not None else None
    id_name = "id" if others["id"] is not None else None
    truth = facts(
        chosen, values, weight if weight_name else None,
        None if id_name is None else [plain_text(one) for one in ids],
    )  # fmt: skip
    return Case(
        {"t.csv": written(draw, order, rows)},
        lambda: read("t.csv", chosen, weight_name, id_name),
        truth,
    )


@st.composite
def csv_not_numbers(draw: Any) -> Case:
    """Draw a CSV table in which one cell of numbers holds none."""
    names, values = draw(columns_of_numbers(PLAIN_NAMES))
    rows = [[spelled(draw, x) for x in row] for row in values]
    i, j = (draw(st.integers(0, size - 1)) for size in values.shape)
    rows[i][j] = draw(st.sampled_from(NOT_NUMBERS))
    if len(names) == 1 and not rows[i][j].strip():
        rows[i][j] = "none"  # an empty line is no row
    content = written(draw, names, rows)
    return Case({"t.csv": content}, lambda: read("t.csv", None, None, None), REFUSED)


NOT_NUMBERS = [
    "", " ", "1_0", "nan", "NaN",
    "inf", "-Infinity", "1e999", "1,5", "1.000,5", "1 000", "0x10", "--1",
    "1-2", "true", "12:30", "2020-01-01", "5%", "$5", "1e", "#N/A", "NULL", "\x00", "5\x1b[2J",
]  # fmt: skip


@st.composite
def csv_damage(draw: Any) -> Case:
    """Draw a CSV file that is none, or none any longer."""
    if draw(st.booleans()):
        content = draw(st.binary(max_size=60))
    else:
        content = damaged(draw, b"x,y,id\n1,2,a\n3.5,-4e3,b\n5,6,c\n")
    columns = draw(st.sampled_from([None, ["x", "y"], ["x"]]))
    return Case({"t.csv": content}, lambda: read("t.csv", columns, None, None))


@st.composite
def parquet_tables(draw: Any) -> Case:
    """Draw a Parquet table of known numbers of several types, whole or damaged."""
    names, values = draw(columns_of_numbers(TEXT.filter(lambda name: name == name.strip())))
    kinds = draw(st.lists(st.integers(0, 4), min_size=len(names), max_size=len(names)))
    arrays, known, never = {}, True, False
    for i, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        column: Any = values[:, i]
        if kind == 1:
            column = np.clip(column, -1e9, 1e9).astype(np.int64)
            values[:, i] = column
        elif kind == 2:
            column = np.clip(column, -1e30, 1e30).astype(np.float32)
            values[:, i] = column
        elif kind == 3:
            column = pyarrow.array([None, *column.tolist()[1:]], pyarrow.float64())
            never = True
        elif kind == 4:
            odd = [[1.0], True, b"12", datetime(2020, 1, 1), math.nan, {"a": 1.0}, "12"]
            column = [draw(st.sampled_from(odd))] * len(column)
            never, known = never or column[0] != "12", known and column[0] != "12"
        arrays[name] = column
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays), stream)
    content = stream.getvalue()
    truth: Any = facts(names, values, None, None) if known else None
    truth = REFUSED if never else truth
    if draw(st.booleans()):
        content, truth = damaged(draw, content), None
    return Case({"t.parquet": content}, lambda: read("t.parquet", None, None, None), truth)


# -- matrices, populations, logs, centres ---------------------------------------------------------

ENTITIES = b"id,x,y\na,0,0\nb,1,0.5\nc,8,9\nd,9,8.5\n"
POINTS = [[0.0, 0.0], [1.0, 0.5], [8.0, 9.0], [9.0, 8.5]]


@st.composite
def matrices(draw: Any) -> Case:
    """Draw a matrix of probabilities for ``fit --autonomy``, whole or damaged."""
    K = draw(st.integers(1, 3))
    weights = draw(st.lists(st.integers(0, 9), min_size=K * K, max_size=K * K))
    P = np.array(weights, dtype=float).reshape(K, K) + np.eye(K)
    P /= P.sum(1, keepdims=True)
    rows = [[spelled(draw, x) for x in row] for row in P]
    content = written(draw, rows[0], rows[1:])
    truth = FixedAutonomy(P).matrix.tolist()
    if draw(st.booleans()):
        content, truth = damaged(draw, content), None
    words = ("fit", "e.csv", f"-k{K}", "--columns=x,y", "--autonomy=p.csv", "--out=out")

    def seen(model: Any, X: Any, **given: Any) -> Any:
        assert X.tolist() == POINTS
        return model.autonomy.matrix.tolist()

    files = {"e.csv": ENTITIES, "p.csv": content}
    return Case(files, lambda: until_it_computes(words, seen), truth, words)


@st.composite
def populations(draw: Any) -> Case:
    """Draw a simulated population in TOML for ``learn --population``, whole or damaged."""
    kappa, gamma = draw(st.floats(0, 1)), draw(st.floats(0, 5))
    temperature = draw(st.floats(1e-3, 1e3))
    missing = draw(st.none() | st.floats(0, 0.9))
    change = draw(st.none() | st.tuples(st.integers(1, 10**6), st.floats(0, 1)))
    text = '[entities]\nfile = "e.csv"\ncolumns = ["x", "y"]\nid = "id"\n'
    text += f"[autonomy]\nkappa = {kappa}\ngamma = {gamma}\ntemperature = {temperature}\n"
    text += "" if missing is None else f"[answers]\nmissing = {missing}\n"
    text += "" if change is None else f"[[changes]]\nat = {change[0]}\nkappa = {change[1]}\n"
    models = {0: DistanceAutonomy(kappa, gamma=gamma, temperature=temperature)}
    if change is not None:
        models[change[0]] = DistanceAutonomy(change[1])
    truth: Any = (POINTS, missing or 0.0, models)
    content = text.encode()
    if draw(st.booleans()):
        junk = ["kappa = [1]", "x = 1", "[entities]", "n = -1", "kappa = true", "[[changes]]", '"']
        lines = text.splitlines()
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(junk)))
        content, truth = "\n".join(lines).encode(), None
        if draw(st.booleans()):
            content = damaged(draw, content)
    words = ("learn", "--population=p.toml", "-k2", "--out=out")

    def seen(model: Any, X: Any, *, population: Any, **given: Any) -> Any:
        return X.tolist(), population.missing, population._models

    files = {"e.csv": ENTITIES, "p.toml": content}
    return Case(files, lambda: until_it_computes(words, seen), truth, words)


LOG = "estimate", "--log=log.csv", "--entities=e.csv", "--centers=c.csv", "--id=id", "--out=out"
LEARN = "learn", "--log=log.csv", "--entities=e.csv", "--centers=c.csv", "--id=id", "--out=out"
CENTERS = b"cluster,x,y\n0,0.5,0.25\n1,8.5,8.75\n"


@st.composite
def logs(draw: Any) -> Case:
    """Draw a log of answers for ``estimate``, whole or damaged."""
    n = draw(st.integers(1, 8))
    some = st.lists(st.integers(0, 1), min_size=n, max_size=n)
    columns: dict[str, list[str]] = {
        "entity": draw(st.lists(st.sampled_from("abcd"), min_size=n, max_size=n)),
        "prescribed": list(map(str, draw(some))),
        "realized": [
            "" if draw(st.integers(0, 9)) == 0 else str(k) for k in draw(some)
        ],
    }  # fmt: skip
    if draw(st.booleans()):
        columns["propensity"] = [spelled(draw, x) for x in draw(
            st.lists(st.floats(0.1, 0.9), min_size=n, max_size=n)
        )]  # fmt: skip
    if draw(st.booleans()):
        columns["remark"] = draw(st.lists(TEXT, min_size=n, max_size=n))
    answered = [i for i in range(n) if columns["realized"][i]]
    truth: Any = [
        [columns["entity"][i], float(columns["prescribed"][i]), float(columns["realized"][i])]
        for i in answered
    ]
    order = draw(st.permutations(list(columns)))
    rows = [[columns[name][i] for name in order] for i in range(n)]
    british = draw(st.booleans())
    header = ["realised" if british and name == "realized" else name for name in order]
    content = written(draw, header, rows)
    if draw(st.integers(0, 2)) == 0:
        content, truth = damaged(draw, content), None

    def seen(model: Any, X: Any, log: Any, centers: Any, **given: Any) -> Any:
        assert np.asarray(X).tolist() == POINTS
        found = zip(log["entity"], log["prescribed"], log["realized"], strict=True)
        kept = [(i, j, k) for i, j, k in found if str(k).strip() not in ("", "None", "nan")]
        # Clusters may be on their way as numbers or as names.
        return [
            [str(i), float(j), float(k)] if is_number(str(j)) and is_number(str(k)) else [i, j, k]
            for i, j, k in kept
        ]

    words = (*LOG, "--columns=x,y")
    files = {"e.csv": ENTITIES, "c.csv": CENTERS, "log.csv": content}
    return Case(files, lambda: until_it_computes(words, seen), truth, words)


ANSWERS = b"entity,prescribed,realized\na,0,0\nb,0,1\nc,1,1\nd,1,0\na,1,1\n"
LAID_OUT = b"entity,prescribed,realized,layout\na,0,0,0\nb,0,1,1\nc,1,1,0\nd,1,0,1\na,1,1,1\n"


@st.composite
def centers(draw: Any) -> Case:
    """Draw a table of centres for ``estimate``: one or two sets, rows in any order, or damaged."""
    sets = draw(st.integers(1, 2))
    n = 2 * sets
    values = draw(st.lists(st.integers(-99, 99), min_size=2 * n, max_size=2 * n))
    Y = np.array(values, dtype=float).reshape(n, 2)
    columns = {"x": [spelled(draw, x) for x in Y[:, 0]], "y": [spelled(draw, x) for x in Y[:, 1]]}
    if draw(st.booleans()):
        columns["share_realized"] = ["0.5"] * n
    if draw(st.booleans()):
        columns["note"] = draw(st.lists(TEXT, min_size=n, max_size=n))
    if sets > 1:
        columns["layout"] = ["0", "0", "1", "1"]
    rows = list(range(n))
    if draw(st.booleans()):
        columns["cluster"] = ["0", "1"] * sets
        rows = draw(st.permutations(rows))
    order = draw(st.permutations(list(columns)))
    content = written(draw, order, [[columns[name][i] for name in order] for i in rows])
    truth: Any = (Y if sets == 1 else Y.reshape(2, 2, 2)).tolist()
    if draw(st.integers(0, 2)) == 0:
        content, truth = damaged(draw, content), None

    def of_estimate(model: Any, X: Any, log: Any, centers: Any, **given: Any) -> Any:
        return np.asarray(centers, dtype=float).tolist()

    words = (*LOG, "--columns=x,y")
    answers = ANSWERS if sets == 1 else LAID_OUT
    files = {"e.csv": ENTITIES, "log.csv": answers, "c.csv": content}
    return Case(files, lambda: until_it_computes(words, of_estimate), truth, words)


@st.composite
def logs_to_learn(draw: Any) -> Case:
    """Draw a damaged log and damaged centres for ``learn --log``."""
    files = {"e.csv": ENTITIES, "log.csv": ANSWERS, "c.csv": CENTERS}
    for name in draw(st.lists(st.sampled_from(list(files)), min_size=1, max_size=2)):
        files[name] = damaged(draw, files[name])
    words = (*LEARN, "--columns=x,y")
    return Case(files, lambda: until_it_computes(words, lambda *a, **g: None), None, words)


# -- saved files ----------------------------------------------------------------------------------

X = np.array(POINTS)


def _model(path: Path) -> Path:
    model = AutonomyAwareClustering(
        2, autonomy=DistanceAutonomy(0.2, temperature=3.0), n_init=1, random_state=0
    )
    return save_model(model.fit(X), path)


def _choices(path: Path) -> Path:
    stay, away = {"constant": [2.0], "cost": [-0.5]}, {"pair": [-1.0]}
    return save_autonomy(ChoiceAutonomy(stay, away, cost_unit=3.0), path, columns=["x", "y"])


def _fixed(path: Path) -> Path:
    return save_autonomy(FixedAutonomy([[0.9, 0.1], [0.2, 0.8]]), path)


def _learner(path: Path) -> Path:
    people = SimulatedPopulation(X, DistanceAutonomy(0.2, temperature=3.0), random_state=0)
    learner = TabularClustering(2, n_interactions=40, random_state=0)
    return save_model(learner.fit(X, population=people), path)


def _network(path: Path) -> Path:
    return save_network(ADENetwork(2, NetworkSize(4, 4, 1, 2), seed=1), path)


def _of_model(model: Any) -> Any:
    return model.predict(X).tolist(), model.transform(X).tolist(), model.get_params()["n_clusters"]


def _of_learner(model: Any) -> Any:
    return model.labels_.tolist(), model.expected_costs().tolist(), repr(model.regret())


def _of_choices(model: Any) -> Any:
    return repr(model), model.cost_unit, {k: v.tolist() for k, v in model.away.items()}


SAVED: dict[str, tuple[Any, Any, Any]] = {
    "model": (_model, load_model, _of_model),
    "choices": (_choices, load_autonomy, _of_choices),
    "matrix": (_fixed, load_autonomy, lambda model: model.matrix.tolist()),
    "learner": (_learner, load_model, _of_learner),
    "network": (
        _network, load_network,
        lambda network: [value.tolist() for value in network.state_dict().values()],
    ),
}  # fmt: skip


@cache
def saved(name: str) -> tuple[bytes, Any]:
    """Return a file of this kind, and what is in it."""
    write, load, fingerprint = SAVED[name]
    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "f.safetensors")
        return path.read_bytes(), fingerprint(load(path))


@st.composite
def saved_files(draw: Any) -> Case:
    """Draw a saved file with wrong bits or lost bytes: refused, or the same as before."""
    name = draw(st.sampled_from(list(SAVED)))
    whole, truth = saved(name)
    _, load, fingerprint = SAVED[name]
    if draw(st.booleans()):  # a single bit, the arrays' no less often than the header's
        start = draw(st.sampled_from([0, len(whole) * 3 // 4]))
        flipped = bytearray(whole)
        flipped[draw(st.integers(start, len(whole) - 1))] ^= 1 << draw(st.integers(0, 7))
        content = bytes(flipped)
    else:
        content = damaged(draw, whole, most=2)
    path = Path("f.safetensors")
    return Case({path.name: content}, lambda: fingerprint(load(path)), truth)


@cache
def _parts(name: str) -> tuple[str, dict[str, np.ndarray]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "f.safetensors"
        path.write_bytes(saved(name)[0])
        with safe_open(str(path), framework="numpy") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return file.metadata()["volition"], tensors


VALUES = st.sampled_from(
    [None, True, -1, 0, 7, 1.5, math.nan, "text", "", [], [1], {}, {"kind": "x"}]
)


def _change(draw: Any, value: Any) -> Any:
    """Return a nest of JSON with one thing in it changed, or gone."""
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(value)))
        rest = {name: one for name, one in value.items() if name != key}
        return rest if draw(st.integers(0, 5)) == 0 else value | {key: _change(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], _change(draw, value[at]), *value[at + 1 :]]
    return draw(VALUES)


@st.composite
def forged_files(draw: Any) -> Case:
    """Draw a file with a right checksum, whose parts do not belong together."""
    name = draw(st.sampled_from(list(SAVED)))
    text, tensors = _parts(name)
    header, tensors = json.loads(text), dict(tensors)
    if draw(st.booleans()):
        header = _change(draw, header)
        if isinstance(header, dict) and draw(st.integers(0, 9)):
            header |= {key: json.loads(text)[key] for key in ("format", "version")}
    else:
        key = draw(st.sampled_from(sorted(tensors)))
        value = tensors[key]
        with np.errstate(over="ignore", invalid="ignore"):
            halves, octets = value.astype(np.float16), value.astype(np.uint8)
        changed = [
            value[:0], value.ravel(), value[None], halves, value.astype(np.int64),
            np.full(value.shape, np.nan), octets,
        ]  # fmt: skip
        tensors[key] = np.ascontiguousarray(changed[draw(st.integers(0, len(changed) - 1))])
        if draw(st.integers(0, 5)) == 0:
            del tensors[key]
    text = json.dumps(header)
    about = {"volition": text, "sha256": checksum(text, tensors)}
    content = safetensors.numpy.save(tensors, metadata=about)
    load, path = SAVED[name][1], Path("f.safetensors")
    return Case({path.name: content}, lambda: load(path) and None)


# -- journals -------------------------------------------------------------------------------------


def _study() -> Study:
    def present(rows: list[Any], page: Any) -> None:
        page.table("squares", [{"n": row["n"], "square": row["square"]} for row in rows])

    cases = [ReproduceCase(f"case {n}", {"n": n}, 1.0) for n in range(4)]
    return Study(
        "squares", "Squares", lambda settings: cases,
        lambda params, settings: {"square": params["n"] ** 2}, present,
    )  # fmt: skip


def _resumed(folder: Path) -> Any:
    page = run(_study(), folder, Settings(), resume=True)
    return [(row["name"], row["n"], row["square"]) for row in page.rows]


@cache
def _journal() -> bytes:
    with TemporaryDirectory() as folder:
        run(_study(), Path(folder), Settings())
        lines = (Path(folder) / JOURNAL).read_bytes().splitlines(keepends=True)
        return b"".join(lines[:-1])  # stopped before the last case


@st.composite
def journals(draw: Any) -> Case:
    """Draw a damaged journal of a reproduction: refused, or the results are as they must be."""
    truth = [(f"case {n}", n, n**2) for n in range(4)]
    return Case({JOURNAL: damaged(draw, _journal(), 3)}, lambda: _resumed(Path()), truth)


# -- whole runs -----------------------------------------------------------------------------------


@st.composite
def whole_fits(draw: Any) -> Case:
    """Draw a small table with any names and ids, fit it, and judge what was written."""
    names = [name.strip() for name in draw(st.lists(TEXT, min_size=2, max_size=2))]
    read = [plain_text(name).strip() for name in names]
    # Columns are named on the command line between commas.
    usable = all(read) and len({*read, "id"}) == 3 and not any("," in name for name in read)
    names = names if usable and read[0][0] != "-" else ["x", "y"]
    read = [plain_text(name).strip() for name in names]
    places = draw(st.lists(st.integers(-50, 50), min_size=12, max_size=12))
    Z = np.array(places, dtype=float).reshape(6, 2)
    ids = draw(st.lists(TEXT, min_size=6, max_size=6))
    rows = [[ids[i], *(spelled(draw, x) for x in Z[i])] for i in range(6)]
    content = written(draw, ["id", *names], rows)
    kappa = draw(st.sampled_from([0.0, 0.3]))
    words = (
        "fit", "t.csv", "-k2", f"--columns={','.join(read)}", "--id=id", f"--kappa={kappa}",
        "--out=out", "--quiet",
    )  # fmt: skip

    def call() -> Any:
        whole_run(words)
        with open("out/centers.csv", newline="", encoding="utf-8") as stream:
            header, *body = csv.reader(stream)
        with open("out/assignments.csv", newline="", encoding="utf-8") as stream:
            _, *given = csv.reader(stream)
        Y = np.array([row[1:3] for row in body], dtype=float)
        labels = np.array([row[1] for row in given], dtype=int)
        said = json.loads(Path("out/summary.json").read_text())["distortion"]
        found = distortion(Z, Y, DistanceAutonomy(kappa), labels)
        right = math.isclose(said, found, rel_tol=1e-9, abs_tol=1e-9)
        return header[1:3], [plain_text(row[0]) for row in given], right

    safe = [name if plain_text(f"'{name}") != name else f"'{name}" for name in read]
    truth = (safe, [plain_text(one) for one in ids], True)
    return Case({"t.csv": content}, call, truth, words)


READERS = (
    Reader("CSV tables", csv_tables()),
    Reader("CSV not numbers", csv_not_numbers()),
    Reader("CSV damage", csv_damage(), batch=200),
    Reader("Parquet tables", parquet_tables()),
    Reader("matrices", matrices()),
    Reader("TOML populations", populations()),
    Reader("logs", logs()),
    Reader("centres", centers()),
    Reader("logs to learn", logs_to_learn()),
    Reader("saved files", saved_files(), batch=200),
    Reader("forged files", forged_files()),
    Reader("journals", journals()),
    Reader("whole fits", whole_fits(), seconds=60.0, batch=2),
)
