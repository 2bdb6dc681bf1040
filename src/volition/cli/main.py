"""The command line: the app with its commands, and how errors end it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import volition
from volition.cli.compare.command import compare
from volition.cli.demo import demo
from volition.cli.estimate.command import estimate
from volition.cli.evaluate.command import evaluate
from volition.cli.fit.command import fit
from volition.cli.learn.command import learn
from volition.cli.phase.command import phase
from volition.cli.predict.command import predict
from volition.cli.reproduce.command import reproduce
from volition.core.messages import printable
from volition.io.results import finished

#: exit code after Ctrl-C
INTERRUPTED = 130
#: commands that write all their results at the end; others keep a state or a journal as they go
ALL_AT_THE_END = ("demo", "fit", "predict", "evaluate", "compare", "phase", "estimate")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Autonomy-aware clustering: place centres, and tell entities that may override you which "
    "one to use.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"volition {volition.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


for _command in (demo, fit, predict, evaluate, compare, phase, learn, estimate, reproduce):
    app.command()(_command)


def main() -> None:
    """Run the command line; a bad input is one sentence and exit code 2."""
    finished.clear()
    try:
        app()
    except (ValueError, OSError) as error:
        message = " ".join(str(error).split())
        print(f"volition: {printable(message)}", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # A folder that is there may be of an earlier run.
            nothing = sys.argv[1:2] and sys.argv[1] in ALL_AT_THE_END and not finished
            print(f"Stopped{'; nothing was written' if nothing else ''}.", file=sys.stderr)
        raise
