"""A short run of the fuzzing that ``make fuzz`` does for half an hour."""

import inputs
import pytest
from inputs import READERS
from runner import Tally, check_sentence, try_reader

BY_NAME = {reader.name: reader for reader in READERS}


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_input_is_right_or_one_sentence(reader):
    tally = Tally()
    failed = try_reader(reader, 4 if reader.batch < 10 else 60, 0, tally)
    assert failed is None, f"{failed[0]}\n{failed[1].files}"
    assert tally.tried


def test_a_reader_that_reads_something_else_is_found(monkeypatch):
    def rounded(path, *names):
        table = read_table(path, *names)
        table.values = table.values.round(3)
        return table

    read_table = inputs.read_table
    monkeypatch.setattr(inputs, "read_table", rounded)
    failure, _ = try_reader(BY_NAME["CSV tables"], 100, 0, Tally())
    assert failure.kind == "silent change"


def test_a_reader_that_breaks_down_is_found(monkeypatch):
    def broken(path, *names):
        raise KeyError("x")

    monkeypatch.setattr(inputs, "read_table", broken)
    failure, _ = try_reader(BY_NAME["CSV damage"], 10, 0, Tally())
    assert failure.kind == "traceback"
    assert "KeyError at test_fuzz.py" in str(failure)


def test_a_reader_that_does_not_end_is_found(monkeypatch):
    def endless(path, *names):
        while True:
            pass

    monkeypatch.setattr(inputs, "read_table", endless)
    quick = inputs.Reader("endless", inputs.csv_damage(), seconds=0.05)
    failure, _ = try_reader(quick, 1, 0, Tally())
    assert failure.kind == "timeout"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "volition: no.\n"),
        (2, "volition: one.\nvolition: two.\n"),
        (2, "volition: \x1b[2J.\n"),
        (2, "volition: " + "x" * 2000 + "\n"),
        (2, "Usage: volition\n"),
        (2, ""),
    ],
)
def test_what_is_not_one_sentence_is_found(code, said):
    with pytest.raises(Exception, match="not one sentence"):
        check_sentence(code, said)
