"""The codec: trees and objects come back as they were, or one sentence says why not."""

import contextlib
import json
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

from volition import (
    ChoiceAutonomy,
    DistanceAutonomy,
    FixedAutonomy,
    LogitAutonomy,
    LoyalAutonomy,
    Passive,
    Recipe,
    RobbinsMonro,
)
from volition.annealing.anneal import PhaseTransition, Record
from volition.annealing.schedules import Critical, Explicit, Geometric
from volition.choices import Basis, Check, ChoiceFit, Trial
from volition.choices.coding import Coding
from volition.choices.decision import Decision
from volition.choices.fit import Part
from volition.choices.seen_costs import ExpectedCosts
from volition.core.autonomy import Autonomy, CallableAutonomy, RowAutonomy
from volition.core.costs import Haversine, SquaredEuclidean
from volition.io.checked_files import checksum, reading
from volition.io.serialization import (
    FUNCTION,
    decode,
    encode,
    encode_params,
    flatten,
    read,
    registered,
    registered_classes,
    unflatten,
    write,
)
from volition.learning.drift.detector import Change
from volition.learning.layouts import Showing
from volition.learning.ledger import Asked
from volition.learning.memory import Memory
from volition.learning.monitor import Estimate
from volition.learning.networks import ADENetwork, NetworkAutonomy, NetworkSize, Units
from volition.learning.networks.tilt import Tilt
from volition.learning.probe import Assumption, Probe
from volition.learning.strategy import Answers, Tally
from volition.learning.study import Letter, Progress
from volition.learning.trial import TrialResult, Tried
from volition.solvers import Armijo, FixedPoint, Gradient
from volition.solvers.candidates import Candidate


def same(a, b):
    """Whether two trees are equal to the last bit; NaN is NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return repr(a) == repr(b)


ARRAYS = hnp.arrays(
    st.sampled_from(["f8", "f4", "f2", "i8", "i4", "u1", "?"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = st.text(max_size=4) | st.sampled_from(
    ["$", "$array", "$float", "$$array", "type", "state", "a.b", "__metadata__", ""]
)
TREES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
VALUES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS | st.integers() | st.tuples(st.integers()), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(TREES)
def test_flattened_trees_are_strict_json_and_come_back(tree):
    json_tree, tensors = flatten(tree)
    text = json.dumps(json_tree, allow_nan=False)
    assert same(unflatten(json.loads(text), tensors), tree)


@given(VALUES)
def test_values_come_back(value):
    json_tree, tensors = flatten(encode(value))
    assert same(decode(unflatten(json.loads(json.dumps(json_tree)), tensors)), value)


@given(TREES)
def test_no_tree_is_executed_or_breaks_the_decoder(tree):
    for take in (lambda: decode(tree), lambda: unflatten(tree, {})):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            take()


def test_numbers_of_other_kinds(tmp_path):
    given = {
        "int": np.int32(3),
        "float": np.float32(0.5),
        "bool": np.bool_(True),
        "text": np.str_("a"),
        "tensor": torch.ones(2),
        "swapped": np.arange(3, dtype=">f8"),
    }
    found = decode(read(write(tmp_path / "f", "test", encode(given)), "test"))
    assert [type(found[name]) for name in ("int", "float", "bool", "text")] == [
        int, float, bool, str,
    ]  # fmt: skip
    assert found["tensor"].dtype == np.float32
    np.testing.assert_array_equal(found["swapped"], np.arange(3.0))
    found["swapped"][0] = 7.0  # what was read can be changed


# -- registered classes ---------------------------------------------------------------------------

TILT = Tilt(np.zeros((3, 2)), np.ones((3, 2)), 0.5, 1.0)
SIZE, UNITS = NetworkSize(4, 4, 1, 2), Units(np.array([0.5, -1.0]), 2.0, 3.0)
ESTIMATE = Estimate(1.0, math.nan, math.inf, 7)


def network(head="choices", double=False):
    found = ADENetwork(2, SIZE, head, seed=1)
    found.units = UNITS
    return found.double() if double else found


def choices(**more):
    stay, away = {"constant": [2.0], "cost": [-0.5]}, {"pair": [-1.0]}
    return ChoiceAutonomy(stay, away, cost_unit=3.0, cost_ranges={"stay": (0.0, 2.0)}, **more)


def fitted():
    stay = Part(("constant", "cost"), {"constant": slice(0, 1), "cost": slice(1, 2)},
                np.array([2.0, -0.5]), np.eye(2), 9)  # fmt: skip
    away = Part(("pair",), {"pair": slice(0, 1)}, np.array([-1.0]), np.eye(1), 4)
    return ChoiceFit(choices(), stay, away, [Trial("stay", ("constant",), -1.0, 0.1, True)], 9)


BASIS = Basis(np.zeros(2), np.ones(2), np.ones((3, 2)), 0.5)
TWO = np.arange(2)
ANSWERS = Answers(Asked(TWO, TWO, TWO, TWO / 2, TWO, TWO, TWO), TWO, TWO / 3, np.zeros((2, 1)))

OBJECTS = [
    Passive(),
    Progress(500, 480, 2.0, 0.1, 0.11, 0.09, 0.13),
    FixedAutonomy([[0.1, 0.9], [0.3, 0.7]]),
    FixedAutonomy({"a": [[1 / 3, 2 / 3], [0.0, 1.0]], 7: np.eye(2)}),
    DistanceAutonomy(0.2, temperature=0.1),
    LogitAutonomy(1.0, pair=-3.0),
    RowAutonomy(np.full((3, 2, 2), 0.5, dtype=np.float32)),
    LoyalAutonomy(NetworkAutonomy(network(), UNITS), [[0.5, 0.25]], share=0.5),
    choices(),
    ChoiceAutonomy({"place": np.ones(3)}, {"table": np.ones(4)}, n_clusters=2, basis=BASIS),
    ChoiceAutonomy({"covariates": [1.0, 2.0]}, {"pair": [1.0]}, covariates=np.ones((4, 2))),
    BASIS,
    fitted(),
    fitted().stay,
    fitted().trials[0],
    Coding(("kind", "age"), {"kind": ["bus", "car"]}),
    Decision("moved", ("one", "two"), "why"),
    Check("a", 1.0, 0.5, "b", True),
    ExpectedCosts(np.ones((2, 2)), np.ones((2, 2))),
    SquaredEuclidean(by_differences=True),
    Haversine(squared=True),
    Geometric(tau=2.0),
    Critical(longest=3.0),
    Explicit((1.0, 2.0)),
    Armijo(step=2.0),
    FixedPoint(fallback=Armijo(step=3.0)),
    Gradient(memory=3),
    Record(1.0, 2, 3.0, 4.0, 5.0, 6.0, 7, 8.0, 9, "converged"),
    PhaseTransition(1.0, 2, 3, None),
    Candidate("a", math.nan, 1, 2.0),
    ESTIMATE,
    Change(1, 2, "what", 0.5, 0.25, 1e-9, [[1, 2]], [[3, 4]], 7),
    Tried("learned", ESTIMATE, math.nan),
    Assumption(1, 2.0, 0.5),
    RobbinsMonro(0.8),
    Recipe(clip=None),
    SIZE,
    UNITS,
    network(),
    network("service", double=True),
    network("costs"),
    NetworkAutonomy(network("service"), UNITS, share=0.5),
    TILT,
    NetworkAutonomy(network("costs"), UNITS, tilt=TILT),
    TrialResult((Tried("learned", ESTIMATE, 0.5),), "k-means", 2.0),
    Tally(3, 2, 1),
    ANSWERS.asked,
    ANSWERS,
    Letter(TWO, ANSWERS),
    Showing(5, np.ones((2, 1)), True),
    Memory.empty(2, 1, 0.5),
    Probe.at(np.ones((3, 2, 1)), 40),
    torch.device("cpu"),
    slice(1, 2),
]


def named(value):
    return type(value).__name__


@pytest.mark.parametrize("value", OBJECTS, ids=named)
def test_every_class_comes_back(tmp_path, value):
    tree = encode(value)
    again = decode(read(write(tmp_path / "f", "test", tree), "test"))
    assert type(again) is type(value)
    assert same(encode(again), tree)


def test_no_class_is_left_out():
    ours = {cls for cls in registered_classes() if cls.__module__.startswith("volition")}
    assert ours <= {type(value) for value in OBJECTS}


def places(tree, at=()):
    """Return all places in a nest of dicts and lists, the outermost first."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = []
    for key, one in inner:
        found.append((*at, key))
        found += places(one, (*at, key)) if isinstance(one, dict | list) else []
    return found


def changed(tree, place, new):
    """Return a copy of a tree with something else, or nothing (None), in one place."""
    tree = json.loads(json.dumps(tree))
    *way, last = place
    inside = tree
    for step in way:
        inside = inside[step]
    if new is None:
        del inside[last]
    else:
        inside[last] = new
    return tree


@pytest.mark.parametrize("value", OBJECTS, ids=named)
def test_a_tree_that_is_not_in_order_is_one_sentence(tmp_path, value):
    path = tmp_path / "f"
    json_tree, tensors = flatten({"value": encode(value)})

    def refused(tree, tensors):
        try:
            with reading(path):
                decode(unflatten(tree, tensors))
        except ValueError as error:
            message = str(error)
            assert message.startswith(f"{path} cannot be used: ")
            assert message.isprintable()
            assert len(message) < 400
            return True
        return False

    for place in places(json_tree)[:200]:
        of_object = place[-2:-1] == ("state",) and isinstance(place[-1], str)
        assert refused(changed(json_tree, place, None), tensors) or not of_object, place
        for new in ("text", [], {"type": "Nothing", "state": 1}, {"$float": "nan"}, {"$array": 1}):
            refused(changed(json_tree, place, new), tensors)
    for name, array in tensors.items():
        for wrong in (array[None], array.astype("f2"), array.astype("u1"), np.full((), np.nan)):
            refused(json_tree, tensors | {name: wrong})
        assert refused(json_tree, {other: tensors[other] for other in tensors if other != name})


@pytest.mark.parametrize(
    "value",
    [one for one in OBJECTS if isinstance(one, Autonomy | ADENetwork) and flatten(encode(one))[1]],
    ids=named,
)
def test_numbers_that_are_none_and_wrong_shapes_are_refused(value):
    json_tree, tensors = flatten(encode(value))
    for name, array in tensors.items():
        if name.endswith(("places", "covariates")):  # which may be of any number
            continue
        for wrong in (np.full_like(array, np.nan), np.stack([array, array, array])):
            if array.dtype.kind == "f":
                with pytest.raises(ValueError):
                    decode(unflatten(json_tree, tensors | {name: wrong}))


def test_names_of_classes_are_stable():
    # Files hold these: a class that is renamed must keep its old name here.
    names = {cls.__name__ for cls in registered_classes() if cls.__module__.startswith("volition")}
    assert {"FixedAutonomy", "NetworkAutonomy", "ChoiceAutonomy", "Geometric", "Record"} <= names


def test_a_class_may_keep_an_older_name():
    class Site(NamedTuple):
        x: int

    registered(Site, "Place of old")
    assert encode(Site(1))["type"] == "Place of old"
    assert decode({"type": "Place of old", "state": {"x": 2}}) == Site(2)


def test_two_classes_of_one_name_are_refused():
    class Record(NamedTuple):
        x: int

    with pytest.raises(ValueError, match="two classes of the name Record"):
        registered(Record)


# -- functions, and what cannot be saved ----------------------------------------------------------


class Tripled(SquaredEuclidean):
    pass


@pytest.mark.parametrize(
    "value",
    [
        abs,
        lambda X, Y: X,
        CallableAutonomy(lambda X, Y: X),
        Tripled(),
        LoyalAutonomy(CallableAutonomy(lambda X, Y: X), [[0.5, 0.5]]),
    ],
    ids=named,
)
def test_functions_become_a_mark(value):
    assert encode(value) is FUNCTION
    assert decode(encode([value]), function="given") == ["given"]
    with pytest.raises(ValueError, match="a Python function is not in it"):
        decode(encode([value]))


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array(["a"]), np.array([None]), 1j, b"a"])
def test_what_is_unknown_is_refused_in_one_sentence(value):
    with pytest.raises(ValueError, match=r"cannot be saved\.$"):
        encode(value)
    with pytest.raises(ValueError, match=r"^The parameter init=.* cannot be saved\.$"):
        encode_params({"init": value})
    with pytest.raises(ValueError, match=r"'a' holds .*, which cannot be saved\.$"):
        flatten({"a": value})


def test_keys_that_are_not_text_are_refused_in_trees():
    with pytest.raises(ValueError, match="key that is not text, 1,"):
        flatten({"a": {1: 2}})


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_older_versions_say_so(tmp_path, version):
    text = json.dumps({"format": "test", "version": version})
    about = {"volition": text} | ({"sha256": checksum(text, {})} if version == 2 else {})
    save_file({}, tmp_path / "f", metadata=about)
    with pytest.raises(ValueError, match="was written by an older version of volition"):
        read(tmp_path / "f", "test")
