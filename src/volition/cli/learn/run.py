"""What ``volition learn`` does: ask and learn until enough is known, and keep what was learned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from volition.cli.interrupts import stoppable
from volition.cli.learn.files import summarize, write_results
from volition.cli.learn.learners import AnyLearner, learner_from_options
from volition.cli.learn.options import LearnerOptions
from volition.cli.learn.printing import CTRL_C, print_assumption, print_summary, progress_display
from volition.cli.learn.source import Source
from volition.cli.outputs import LEARN_FILES, LEARN_STATE
from volition.cli.terminal import make_console
from volition.cli.warned import collected_warnings, sentences
from volition.io.checked_files import reason_of, sweep
from volition.io.results import output_folder


def run_learn(
    source: Source, options: LearnerOptions, out: Path, resume: bool, quiet: bool
) -> None:
    """Learn from a source, write the results and print what came out."""
    model = learner_from_options(options, source)
    if resume and not (out / LEARN_STATE).is_file():
        raise ValueError(f"There is no {out / LEARN_STATE} to resume from.")
    console = make_console()
    if options.name == "tabular":
        print_assumption(console, source)
    began = perf_counter()
    with _folder_for_state(out), collected_warnings(source.table) as caught:
        failure = _learn(model, source, out / LEARN_STATE, resume, quiet)
        if not getattr(model, "n_answers_", 0):
            raise ValueError(failure or "Stopped before the first answer; nothing was learned.")
    summary = summarize(model, source, perf_counter() - began, options.seed)
    with output_folder(out, LEARN_FILES) as folder:
        write_results(model, source, summary, folder)
    print_summary(console, model, summary, out)
    for note in dict.fromkeys([*source.notes, *sentences(caught)]):
        console.print(f"Note: {note}")
    if failure is not None:
        raise ValueError(f"{failure} Results so far are in {out}/.")


def _learn(
    model: AnyLearner, source: Source, state: Path, resume: bool, quiet: bool
) -> Exception | None:
    """Fit a learner; return what made its population fail, if anything."""
    with progress_display(quiet) as update, stoppable() as stopped:
        try:
            model.fit(
                source.table.values,
                population=source.population,
                sample_weight=source.table.weight,
                checkpoint=state,
                resume=resume,
                on_batch=lambda learner: update(learner) or (CTRL_C if stopped() else None),
            )
        except RuntimeError as error:
            model.stop_reason_ = "failed"
            return error
    return None


@contextmanager
def _folder_for_state(folder: Path) -> Iterator[None]:
    """Make the folder that checkpoints go to; take it away again if nothing came of it."""
    made = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"The output folder {folder} cannot be written: {reason_of(error)}."
        ) from None
    sweep(folder)
    try:
        yield
    except BaseException:
        for empty in made:
            if not any(empty.iterdir()):
                empty.rmdir()
        raise
