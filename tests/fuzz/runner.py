"""Try inputs on every reader for a fixed time: ``make fuzz``, or ``FUZZ_SECONDS=60 make fuzz``.

Every input must end in a result that is right or in one sentence with exit code 2. What does not is
printed with how to try it again, its files are kept in fuzz-failures/, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import signal
import sys
import tempfile
import traceback
import unicodedata
import warnings
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import matplotlib

matplotlib.use("Agg")

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, settings
from inputs import READERS, Case, Reader

import volition.cli.main

#: characters of the one sentence, at most
LONGEST = 1000
KINDS = ("traceback", "timeout", "silent change", "not one sentence")


class TooLong(BaseException):
    """An input that has taken longer than it may."""


class Failure(Exception):
    """An input that ended in neither a right result nor one sentence."""

    def __init__(self, kind: str, what: str, where: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind, self.what, self.where = kind, what, where


@dataclass
class Tally:
    """What came of the inputs of one reader."""

    tried: int = 0
    right: int = 0
    refused: int = 0
    seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)


def attempt(case: Case, seconds: float) -> str:
    """Try one input in the present folder; return "right" or "refused", or raise Failure."""
    for name, content in case.files.items():
        Path(name).write_bytes(content)
    result: list[Any] = []
    kept, out, err = volition.cli.main.app, io.StringIO(), io.StringIO()
    code = 0

    def late(number: int, frame: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        # All errors go the way that they go for a user: through main.
        volition.cli.main.app = lambda: result.append(case.call())  # type: ignore[assignment]
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            volition.cli.main.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except TooLong:
        raise Failure("timeout", f"more than {seconds:g} s", "timeout") from None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        what = f"{type(error).__name__} at {where}: {str(error)[:200]!r}"
        raise Failure("traceback", what, where) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        volition.cli.main.app = kept
    if code:
        check_sentence(code, err.getvalue())
        return "refused"
    if case.truth is not None and result[0] != case.truth:
        what = f"read {result[0]!r:.300}, but it is {case.truth!r:.300}"
        raise Failure("silent change", what, "result")
    return "right"


def check_sentence(code: int, said: str) -> None:
    """Raise Failure unless a command was refused by one sentence of bounded length."""
    line = said.removesuffix("\n")
    wrong = [c for c in line if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    fine = code == 2 and line.startswith("volition: ") and not wrong and len(line) <= LONGEST
    if not fine:
        where = f"code {code}, {len(line)} characters, control characters {sorted(set(wrong))}"
        raise Failure("not one sentence", f"{where}: {line[:300]!r}", "sentence")


def try_reader(
    reader: Reader, n: int, number: int, tally: Tally, until: float = float("inf")
) -> tuple[Failure, Case] | None:
    """Try n inputs of one reader; return the simplest failure that was found, if any."""
    found: list[tuple[Failure, Case]] = []

    @hypothesis.seed(number)
    @settings(
        max_examples=n,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(reader.cases)
    def one(case: Case) -> None:
        if perf_counter() > until and not found:
            return
        tally.tried += 1
        with_folder = tempfile.mkdtemp(dir=ROOM)
        here = os.getcwd()
        os.chdir(with_folder)
        try:
            came = attempt(case, reader.seconds)
            setattr(tally, came, getattr(tally, came) + 1)
        except Failure as failure:
            found.append((failure, case))
            raise
        finally:
            os.chdir(here)
            shutil.rmtree(with_folder, ignore_errors=True)

    try:
        with redirect_stdout(io.StringIO()):
            one()
    except Exception:  # the failure itself, several of them, or one that does not come again
        if not found:
            raise
        return found[-1]
    return None


#: where input files are written: memory, if there is some
ROOM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def keep(failure: Failure, case: Case, reader: Reader, number: int, folder: Path) -> Path:
    """Write the files of a failure down, with how to try it again."""
    place = folder / f"{reader.name.replace(' ', '-')}-{number}"
    place.mkdir(parents=True, exist_ok=True)
    for name, content in case.files.items():
        (place / name).write_bytes(content)
    words = " ".join(("volition", *case.words)) if case.words else "a call of the reader"
    (place / "failure.txt").write_text(f"{failure}\n\n{words}\n\ntruth: {case.truth!r}\n")
    return place


def report(tallies: dict[str, Tally]) -> str:
    """Return the table of what was tried."""
    heads = ("reader", "tried", "right", "refused", *(f"{kind}s" for kind in KINDS), "seconds")
    total = Tally()
    rows = [heads]
    for name, tally in (*tallies.items(), ("all", total)):
        if tally is not total:
            total.tried += tally.tried
            total.right += tally.right
            total.refused += tally.refused
            total.seconds += tally.seconds
            total.failures.update(tally.failures)
        counts = (tally.tried, tally.right, tally.refused, *(tally.failures[k] for k in KINDS))
        rows.append((name, *map(str, counts), f"{tally.seconds:.0f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def main() -> int:
    """Run for a time; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    seconds = float(os.environ.get("FUZZ_SECONDS", "1800"))
    parser.add_argument("--seconds", type=float, default=seconds, help="how long, in all")
    parser.add_argument("--reader", choices=[reader.name for reader in READERS], help="only this")
    parser.add_argument("--round", type=int, help="only this round: tries a failure again")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="for failures")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    readers = [reader for reader in READERS if chosen.reader in (None, reader.name)]
    tallies = {reader.name: Tally() for reader in readers}
    known: set[tuple[str, str, str]] = set()
    number = chosen.first if chosen.round is None else chosen.round
    end = perf_counter() + chosen.seconds
    while perf_counter() < end:
        for reader in readers:
            tally, began = tallies[reader.name], perf_counter()
            failed = try_reader(reader, reader.batch, number, tally, end)
            tally.seconds += perf_counter() - began
            if failed is None:
                continue
            failure, case = failed
            tally.failures[failure.kind] += 1
            same = (reader.name, failure.kind, failure.where)
            if same in known:
                continue
            known.add(same)
            place = keep(failure, case, reader, number, chosen.keep)
            again = f"--reader {reader.name!r} --round {number}"
            print(f"{reader.name}: {failure}\n  files in {place}\n  again: {sys.argv[0]} {again}")
        number += 1
        if chosen.round is not None:
            break
    print(report(tallies))
    return int(any(tally.failures for tally in tallies.values()))


if __name__ == "__main__":
    raise SystemExit(main())
