"""``volition predict``: its options."""

from __future__ import annotations

from pathlib import Path

from volition.cli.options import Columns, File, Model, Out, Overwrite, RowNames
from volition.cli.outputs import PREDICT_FILES
from volition.io.results import check_writable


def predict(
    model: Model,
    file: File,
    columns: Columns = None,
    id_column: RowNames = None,
    out: Out = Path("volition-predictions"),
    overwrite: Overwrite = False,
) -> None:
    """Recommend one of the centres of a saved placement to every entity of a table.

    Writes assignments.csv: for each entity the centre to recommend, what to expect it to cost, and
    how likely the entity is to follow. The entities need not be those of the fit.
    """
    check_writable(out, PREDICT_FILES, overwrite)

    from volition.cli.predict.run import run_predict

    run_predict(model, file, columns, id_column, out)
