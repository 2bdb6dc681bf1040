"""Loading the package and asking for help are quick: heavy libraries are loaded when used."""

import ast
import json
import subprocess
import sys

import pytest
import typer

import volition
import volition.paper
from volition.cli.main import app
from volition.cli.options import METRICS
from volition.core.costs import METRICS as COSTS
from volition.paper import STUDIES, STUDY_NAMES

HEAVY = {"torch", "sklearn", "scipy", "pandas", "matplotlib", "numba", "pyarrow"}
COMMANDS = sorted(typer.main.get_command(app).commands)
LOADED = "import json, sys; sys.stderr.write(json.dumps(sorted(sys.modules)))"


def loaded_by(program, *words):
    """Return the heavy libraries that a program loads, which ends with an exit code of 0."""
    whole = f"import atexit\natexit.register(lambda: exec({LOADED!r}))\n{program}"
    ended = subprocess.run(
        [sys.executable, "-c", whole, *words], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in json.loads(ended.stderr)} & HEAVY


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import volition; volition.__version__; dir(volition)") == set()


def test_a_name_is_loaded_when_it_is_used():
    assert loaded_by("from volition import Passive") >= {"torch"}


@pytest.mark.parametrize("words", [("--help",), ("--version",), *((c, "--help") for c in COMMANDS)])
def test_help_loads_nothing_heavy(words):
    assert loaded_by("from volition.__main__ import main; main()", *words) == set()


def test_a_refusal_of_an_option_loads_nothing_heavy(tmp_path):
    program = (
        "from volition.__main__ import main\n"
        "import sys\n"
        "sys.stderr, real = open(sys.argv.pop(), 'w'), sys.stderr\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 2\n"
        "sys.stderr = real\n"
    )
    words = ("fit", "no.csv", "-k", "2", "--time-budget", "0", str(tmp_path / "error"))
    assert loaded_by(program, *words) == set()
    assert "--time-budget must be a positive" in (tmp_path / "error").read_text()


@pytest.mark.parametrize("package", [volition, volition.paper])
def test_python_and_type_checkers_see_the_same_names(package):
    """What ``__all__`` lists, ``dir`` shows, access finds, and the type checkers' imports name."""
    with open(package.__file__, encoding="utf-8") as stream:
        (branch,) = (node for node in ast.parse(stream.read()).body if isinstance(node, ast.If))
    typed = {alias.name for node in branch.body for alias in node.names}
    held = {name for name in package.__all__ if name not in typed}
    assert typed <= set(package.__all__)
    assert held <= {"STUDY_NAMES"}  # written down in the package itself
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert name in dir(package)


def test_an_unknown_name_is_refused_as_ever():
    with pytest.raises(AttributeError, match="module 'volition' has no attribute 'nothing'"):
        volition.nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from volition import nothing  # noqa: F401


def test_what_help_texts_list_is_what_there_is():
    assert METRICS == COSTS
    assert tuple(STUDIES) == STUDY_NAMES
