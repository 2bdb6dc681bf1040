"""Damaged files are refused in one sentence; full disks leave what was there."""

import json
import os
import re
import resource
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from volition import (
    AutonomyAwareClustering,
    DistanceAutonomy,
    FixedAutonomy,
    SimulatedPopulation,
    TabularClustering,
    load_autonomy,
    load_model,
    save_autonomy,
    save_model,
)
from volition.io.checked_files import checksum, sweep, temporary_prefix
from volition.learning.networks import ADENetwork, NetworkSize, load_network, save_network

X = np.array([[0.0, 0.0], [1.0, 0.5], [8.0, 9.0], [9.0, 8.5], [0.5, 1.0]])


def saved_model(path):
    autonomy = DistanceAutonomy(0.2, temperature=3.0)
    model = AutonomyAwareClustering(2, autonomy=autonomy, n_init=1, random_state=0)
    return save_model(model.fit(X), path)


def saved_autonomy(path):
    return save_autonomy(FixedAutonomy([[0.9, 0.1], [0.2, 0.8]]), path, columns=["x", "y"])


def saved_learner(path):
    people = SimulatedPopulation(X, DistanceAutonomy(0.2, temperature=3.0), random_state=0)
    learner = TabularClustering(2, n_interactions=40, random_state=0)
    return save_model(learner.fit(X, population=people), path)


def saved_network(path):
    return save_network(ADENetwork(2, NetworkSize(4, 4, 1, 2), seed=1), path)


CENTERS, LABELS = "fitted.cluster_centers_", "fitted.labels_"


def print_of_model(model):
    return model.predict(X).tobytes() + model.transform(X).tobytes()


def print_of_learner(model):
    known = model.expected_costs().tobytes() + np.array(model.regret()).tobytes()
    return model.labels_.tobytes() + known


def print_of_network(network):
    return b"".join(value.numpy().tobytes() for value in network.state_dict().values())


KINDS = {
    "model": (saved_model, load_model, print_of_model),
    "autonomy": (saved_autonomy, load_autonomy, lambda a: a.matrix.tobytes()),
    "learner": (saved_learner, load_model, print_of_learner),
    "network": (saved_network, load_network, print_of_network),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def attempt(load, path):
    """Return what was loaded and None, or None and the one sentence that refuses the file."""
    try:
        return load(path), None
    except ValueError as error:
        message = str(error)
    assert str(path) in message
    assert message.isprintable(), message
    assert len(message) < 400
    return None, message


def check_refused(load, path):
    message = attempt(load, path)[1]
    assert message is not None
    return message


def test_every_flipped_byte_is_refused_or_changes_nothing(tmp_path, kind):
    save, load, fingerprint = kind
    path = save(tmp_path / "f.safetensors")
    whole = path.read_bytes()
    before = fingerprint(load(path))
    rng = np.random.default_rng(0)
    places = rng.permutation(len(whole))[:1500]
    for place in (*range(400), *places):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        again, refused = attempt(load, path)
        assert refused or fingerprint(again) == before, f"byte {place}"


def test_every_truncation_is_refused(tmp_path, kind):
    save, load, _ = kind
    path = save(tmp_path / "f.safetensors")
    whole = path.read_bytes()
    for end in (*range(30), *range(30, len(whole), max(1, len(whole) // 60))):
        path.write_bytes(whole[:end])
        check_refused(load, path)
    path.write_bytes(whole + b"\0")
    check_refused(load, path)


def rewrite(path, change):
    """Change a file's header or arrays, and give it the checksum that this has."""
    with safe_open(str(path), framework="numpy") as file:
        text = file.metadata()["volition"]
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header = json.loads(text)
    header = change(header, tensors) or header
    text = header if isinstance(header, str) else json.dumps(header)
    about = {"volition": text, "sha256": checksum(text, tensors)}
    safetensors.numpy.save_file(tensors, path, metadata=about)


def paths_in(value, at=()):
    """Return all places in a nest of dicts and lists, the outermost last."""
    if isinstance(value, dict):
        inner = [place for key, one in value.items() for place in paths_in(one, (*at, key))]
    elif isinstance(value, list):
        inner = [place for i, one in enumerate(value[:3]) for place in paths_in(one, (*at, i))]
    else:
        inner = []
    return [*inner, at] if at else inner


def test_headers_without_a_key_or_with_another_value_end_in_a_sentence(tmp_path, kind):
    save, load, _ = kind
    path = save(tmp_path / "f.safetensors")
    whole = path.read_bytes()
    with safe_open(str(path), framework="numpy") as file:
        places = paths_in(json.loads(file.metadata()["volition"]))
    missing = object()
    for place in places:
        for value in (missing, None, "text", [], {}):

            def change(header, tensors, place=place, value=value):
                *way, last = place
                for step in way:
                    header = header[step]
                if value is missing:
                    del header[last]
                else:
                    header[last] = value

            path.write_bytes(whole)
            rewrite(path, change)
            attempt(load, path)


def test_arrays_that_do_not_fit_end_in_a_sentence(tmp_path, kind):
    save, load, _ = kind
    path = save(tmp_path / "f.safetensors")
    whole = path.read_bytes()
    with safe_open(str(path), framework="numpy") as file:
        names = list(file.keys())
    wrong = {
        "gone": None,
        "longer": lambda a: np.concatenate([a.ravel(), a.ravel(), np.ones(1, a.dtype)]),
        "halves": lambda a: (a.astype(float) % 1000).astype(np.float16),
    }
    for name in names:
        for make in wrong.values():

            def change(header, tensors, name=name, make=make):
                value = tensors.pop(name)
                if make is not None:
                    tensors[name] = make(value)

            path.write_bytes(whole)
            rewrite(path, change)
            attempt(load, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, tensors: "[]", "it has no header of ours"),
        (lambda header, tensors: "nonsense", "not a file saved by volition"),
        (
            lambda header, tensors: header["tree"]["fitted"].pop("beta_") and None,
            "'beta_' is missing",
        ),
        (
            lambda header, tensors: header["tree"]["params"].update(n_clusters="two"),
            "n_clusters must be",
        ),
        (
            lambda header, tensors: header["tree"]["params"].update(metric="taxi"),
            "metric must be one of",
        ),
        (lambda header, tensors: header["tree"]["params"].update(colour=1), "colour"),
        (
            lambda header, tensors: tensors.update({CENTERS: np.full((2, 2), np.nan)}),
            "'cluster_centers_' holds a number that is not finite",
        ),
        (
            lambda header, tensors: tensors.update({CENTERS: np.ones((3, 2))}),
            "'cluster_centers_' has shape (3, 2), not (2, 2)",
        ),
        (
            lambda header, tensors: tensors.update({LABELS: np.ones(5)}),
            "'labels_' holds float64, which it cannot",
        ),
        (
            lambda header, tensors: tensors.update({LABELS: np.full(5, 7)}),
            "'labels_' holds a cluster that does not exist",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path, change, message):
    path = saved_model(tmp_path / "m.safetensors")
    rewrite(path, change)
    assert message in check_refused(load_model, path)


def test_a_damaged_state_leaves_the_learner_as_it_was(tmp_path):
    people = SimulatedPopulation(X, DistanceAutonomy(0.2, temperature=3.0), random_state=0)
    learner = TabularClustering(2, n_interactions=40, random_state=0).fit(X, population=people)
    before = print_of_learner(learner)
    path = saved_learner(tmp_path / "s.safetensors")
    rewrite(path, lambda header, tensors: header["tree"]["study"]["strategy"].pop("beta") and None)
    check_refused(learner.resume, path)
    assert print_of_learner(learner) == before


def test_the_command_line_names_a_damaged_file(command, tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n1,2\n3,4\n5,7\n")
    path = saved_autonomy(tmp_path / "a.safetensors")
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    code, _, err = command("fit", "t.csv", "-k", 2, "--autonomy", "a.safetensors")
    assert code == 2
    assert err == "volition: a.safetensors is damaged: its content does not match its checksum.\n"


# -- full disks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        ),
        OSError(28, "No space left on device"),
    ],
)
def test_a_full_disk_is_one_sentence_and_the_old_file_stays(tmp_path, monkeypatch, kind, error):
    save, _, _ = kind
    path = save(tmp_path / "f.safetensors")
    kept = path.read_bytes()

    def fail(tensors, name, metadata=None):
        with open(name, "wb") as stream:
            stream.write(b"half")
        raise error

    monkeypatch.setattr("volition.io.checked_files.save_file", fail)
    with pytest.raises(OSError) as caught:
        save(path)
    assert str(caught.value) == f"{path} cannot be written: No space left on device."
    assert path.read_bytes() == kept
    assert os.listdir(tmp_path) == ["f.safetensors"]


LIMITED = """
import resource, signal, sys
import numpy as np
from volition.io.checked_files import write_file
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_file(Path(sys.argv[1]), {"x": np.ones(1_000_000)}, "test", {})
except OSError as error:
    print(error)
"""


def test_a_file_system_that_really_refuses(tmp_path):
    path = tmp_path / "f.safetensors"
    path.write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, path], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(re.escape(f"{path} cannot be written: ") + "File too large.\n", done.stdout)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f.safetensors"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


# -- what killed runs leave -----------------------------------------------------------------------


def test_what_dead_processes_left_is_swept_and_nothing_else(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import volition.io.checked_files as s; print(s.temporary_prefix())",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    dead = done.stdout.strip()
    (tmp_path / f"{dead}abc").mkdir()
    (tmp_path / f"{dead}abc" / "centers.csv").write_text("half")
    (tmp_path / f"{dead}def").write_text("half")
    mine = tmp_path / f"{temporary_prefix()}abc"
    mine.mkdir()
    for name in (".volition-notes", ".volition-00000000-12-recent", "centers.csv"):
        (tmp_path / name).write_text("kept")
    old = tmp_path / ".volition-00000000-12-old"
    old.write_text("of another machine, long ago")
    os.utime(old, (0, 0))
    sweep(tmp_path)
    kept = {mine.name, ".volition-notes", ".volition-00000000-12-recent", "centers.csv"}
    assert set(os.listdir(tmp_path)) == kept
    sweep(tmp_path / "none")
