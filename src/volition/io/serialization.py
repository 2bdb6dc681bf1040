"""The one codec for all that is saved.

Two steps lead from an object to a file, and two lead back:

- `encode` turns objects into a *tree*: dicts and lists of None, bool, int, float, str and NumPy
  arrays. A class takes part when it is `registered`.
- `flatten` puts the arrays of a tree aside and leaves plain JSON; their names say where
  they stand in the tree.

Nothing that is read is executed. A Python function is never written: in its place stands a mark,
and the reader of the file gives the function again.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch

from volition.io.checked_files import read_file, reading, shown, write_file

C = TypeVar("C", bound=type)
#: what a tree may hold besides dicts, lists and arrays
PLAIN = frozenset({bool, int, float, str, type(None)})
#: kinds of numbers in arrays
KINDS = "biuf"
#: what a Python function becomes
FUNCTION: dict[str, Any] = {"type": "function", "state": None}
#: what belongs to a run and not to a model
_OF_A_RUN = (
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    np.random.SeedSequence,
)


# -- trees ----------------------------------------------------------------------------------------


def flatten(tree: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Put the arrays of a tree aside.

    Parameters
    ----------
    tree : tree
        Dicts with text as keys, and lists, of None, bool, int, float, str and arrays of numbers.

    Returns
    -------
    json_tree
        The same with marks in place of arrays and of numbers that JSON does not know.
    tensors : dict of str to ndarray
        The arrays; their names say where they stand.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.io.serialization import flatten, unflatten
    >>> flatten({"model": {"centers": np.zeros(2), "cost": float("nan")}})
    ({'model': {'centers': {'$array': 'model.centers'}, 'cost': {'$float': 'nan'}}},
     {'model.centers': array([0., 0.])})
    """
    tensors: dict[str, np.ndarray] = {}

    def put(value: Any, *at: Any) -> Any:
        if type(value) in PLAIN:
            if type(value) is float and not math.isfinite(value):
                return {"$float": repr(value)}
            return value
        if isinstance(value, list):
            return [put(one, *at, number) for number, one in enumerate(value)]
        if isinstance(value, dict):
            found = {}
            for key, one in value.items():
                if not isinstance(key, str):
                    raise ValueError(f"A key that is not text, {shown(repr(key))}, is in the tree.")
                # A key of ours begins with one $, anybody else's with two.
                found[f"${key}" if key[:1] == "$" else key] = put(one, *at, key)
            return found
        where = ".".join(map(str, at))
        number = isinstance(value, np.ndarray) and value.dtype.kind in KINDS
        if not number or value.dtype.itemsize > 8:
            what = getattr(value, "dtype", type(value).__name__)
            raise ValueError(f"'{shown(where)}' holds {what}, which cannot be saved.")
        while where in tensors or where in ("", "__metadata__"):  # the latter is the format's own
            where += "+"
        tensors[where] = value.astype(value.dtype.newbyteorder("="), copy=False)
        return {"$array": where}

    return put(tree), tensors


def unflatten(json_tree: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    """Return the tree that `flatten` took apart.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.io.serialization import flatten, unflatten
    >>> unflatten(*flatten({"x": np.ones(2), "low": -float("inf")}))
    {'x': array([1., 1.]), 'low': -inf}
    """
    if isinstance(json_tree, list):
        return [unflatten(one, tensors) for one in json_tree]
    if not isinstance(json_tree, dict):
        return json_tree
    if len(json_tree) == 1:
        ((mark, value),) = json_tree.items()
        if mark == "$array":
            return tensors[value]
        if mark == "$float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[value]
    return {key.removeprefix("$"): unflatten(one, tensors) for key, one in json_tree.items()}


def write(path: Any, kind: str, tree: Any) -> Path:
    """Write a tree to one file of some kind, complete or not at all.

    Examples
    --------
    >>> import os, tempfile
    >>> from volition.io.serialization import read, write
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read(write(os.path.join(folder, "a.safetensors"), "test", {"n": 1}), "test")
    {'n': 1}
    """
    json_tree, tensors = flatten(tree)
    return write_file(Path(path), tensors, kind, {"tree": json_tree})


def read(path: Any, *kinds: str) -> Any:
    """Return the tree in a file of one of these kinds, undamaged; see `write`."""
    path = Path(path)
    tensors, header = read_file(path, *kinds)
    with reading(path):
        return unflatten(header["tree"], tensors)


# -- objects --------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """How objects of one class become trees, and trees become objects."""

    name: str
    cls: type
    state: Callable[[Any], Any]
    build: Callable[[Any], Any]


_BY_NAME: dict[str, Entry] = {}
_BY_CLASS: dict[type, Entry] = {}
#: base classes of what users write themselves
_USER_CODE: list[type] = []


def registered(cls: C, name: str = "") -> C:
    """Let objects of a class be saved, under its name or one that it had before: a decorator.

    The class may have ``state(self)``, which returns a tree (objects of registered classes may be
    in it), and ``from_state(cls, state)``, which returns the object or raises ValueError. Without
    these the state is what the constructor takes, read from attributes of the same names: so
    dataclasses and named tuples need no code.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> from volition.io.serialization import decode, encode, registered
    >>> @registered
    ... class Place(NamedTuple):
    ...     name: str
    ...     x: float
    >>> encode(Place("mall", 1.5))
    {'type': 'Place', 'state': {'name': 'mall', 'x': 1.5}}
    >>> decode(encode(Place("mall", 1.5)))
    Place(name='mall', x=1.5)
    """
    state = getattr(cls, "state", None) or _arguments
    build = getattr(cls, "from_state", None) or (lambda found: constructed(cls, found))
    _register(Entry(name or cls.__name__, cls, state, build))
    return cls


def user_code(cls: C) -> C:
    """Mark a base class whose subclasses count as Python functions unless they are registered."""
    _USER_CODE.append(cls)
    return cls


def registered_classes() -> list[type]:
    """Return all classes that can be saved."""
    return list(_BY_CLASS)


def _register(entry: Entry) -> None:
    other = _BY_NAME.get(entry.name)
    if other is not None and other.cls.__module__ != entry.cls.__module__:
        raise ValueError(f"There are two classes of the name {entry.name} to be saved.")
    _BY_NAME[entry.name] = _BY_CLASS[entry.cls] = entry


@cache
def _parameters(cls: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(cls).parameters)


def _arguments(value: Any) -> dict[str, Any]:
    """Return what an object's constructor takes, from its attributes."""
    cls: Any = type(value)
    return {name: getattr(value, name) for name in _parameters(cls)}


def constructed(cls: Any, state: dict[str, Any]) -> Any:
    """Return an object from what its constructor takes, each of the type that is declared."""
    hints = _hints(cls)
    for name in {**dict.fromkeys(_parameters(cls)), **state}:
        if name not in state or name not in _parameters(cls):
            raise ValueError(f"its {cls.__name__} has '{shown(name)}' missing, or too much")
        if not _fits(state[name], hints.get(name)):
            raise ValueError(f"'{name}' of its {cls.__name__} is {shown(repr(state[name]))}")
    return cls(**state)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """Return what the constructor's arguments are declared to be."""
    return get_type_hints(cls) | get_type_hints(cls.__init__)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is what it is declared to be, as far as plain types and arrays go."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if get_origin(hint) is np.ndarray:
        return isinstance(value, np.ndarray)
    if hint is float:
        return type(value) in (int, float)
    return hint not in PLAIN or type(value) is hint


def encode(value: Any) -> Any:
    """Return an object as a tree.

    Parameters
    ----------
    value : object
        Plain values, arrays, dicts, lists, tuples, and objects of `registered` classes, in any
        depth. What is or holds a Python function becomes a mark.

    Returns
    -------
    tree

    Examples
    --------
    >>> from volition import DistanceAutonomy
    >>> from volition.io.serialization import decode, encode
    >>> encode({"shape": (2, 3), "cost": abs})
    {'shape': {'type': 'tuple', 'state': [2, 3]}, 'cost': {'type': 'function', 'state': None}}
    >>> decode(encode([DistanceAutonomy(0.5)]))
    [DistanceAutonomy(kappa=0.5, gamma=0.0, zeta=1.0, temperature=1.0)]
    """
    if type(value) in PLAIN:
        return value
    entry = _BY_CLASS.get(type(value))
    if entry is not None:
        state = encode(entry.state(value))
        if _holds_function(state):
            return FUNCTION
        return {"type": entry.name, "state": state}
    if isinstance(value, list):
        return [encode(one) for one in value]
    if isinstance(value, str):
        return str(value)  # NumPy has its own
    if isinstance(value, np.ndarray) and value.dtype.kind in KINDS:
        return value
    if isinstance(value, np.generic) and value.dtype.kind in KINDS:
        return value.item()
    if isinstance(value, tuple | range) and not hasattr(value, "_fields"):
        return {"type": "tuple", "state": [encode(one) for one in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and "type" not in value:
            return {key: encode(one) for key, one in value.items()}
        pairs = [[encode(key), encode(one)] for key, one in value.items()]
        return {"type": "dict", "state": pairs}
    if isinstance(value, tuple(_USER_CODE)) or callable(value):
        return FUNCTION
    if hasattr(value, "__array__") and np.asarray(value).dtype.kind in KINDS:
        return np.asarray(value)  # a tensor, a table
    raise ValueError(f"{value!r} cannot be saved.")


def decode(tree: Any, function: Any = None) -> Any:
    """Return the object that `encode` made a tree of.

    Parameters
    ----------
    tree : tree
        Anything; what is not in order raises an error.
    function : object, optional
        What to put in place of Python functions.

    Examples
    --------
    See `encode`.
    """
    if isinstance(tree, list):
        return [decode(one, function) for one in tree]
    if not isinstance(tree, dict):
        return tree
    if "type" not in tree:
        return {key: decode(one, function) for key, one in tree.items()}
    kind = tree["type"]
    if _is_function(tree):
        if function is None:
            raise ValueError("a Python function is not in it, and was not given")
        return function
    state = decode(tree["state"], function)
    if kind == "tuple":
        return tuple(state)
    if kind == "dict":
        return dict(state)
    if not isinstance(kind, str) or kind not in _BY_NAME:
        raise ValueError(f"it holds a {shown(repr(kind))}, which this release does not know")
    return _BY_NAME[kind].build(state)


def _is_function(tree: Any) -> bool:
    return isinstance(tree, dict) and tree.get("type") == FUNCTION["type"]


def _holds_function(tree: Any) -> bool:
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return _is_function(tree) or any(map(_holds_function, inner))


_register(Entry("device", torch.device, str, torch.device))
_register(
    Entry("slice", slice, lambda cut: [cut.start, cut.stop, cut.step], lambda ends: slice(*ends))
)


# -- parameters of estimators ---------------------------------------------------------------------


def encode_params(params: dict[str, Any]) -> dict[str, Any]:
    """Return constructor parameters as a tree; generators belong to the run and become None.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.io.serialization import encode_params
    >>> encode_params({"n_clusters": np.int64(3), "random_state": np.random.default_rng(0)})
    {'n_clusters': 3, 'random_state': None}
    """
    encoded = {}
    for name, value in params.items():
        try:
            encoded[name] = None if isinstance(value, _OF_A_RUN) else encode(value)
        except ValueError as error:
            why = "" if str(error) == f"{value!r} cannot be saved." else f" {error}"
            raise ValueError(f"The parameter {name}={value!r} cannot be saved.{why}") from None
    return encoded


def decode_params(path: Any, tree: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return constructor parameters, with the user's functions where the file has none.

    Parameters
    ----------
    path : path
        The file, to be named in errors.
    tree : dict
        From `encode_params`.
    given : dict of str to object
        What the user has given for the parameters that may be functions; None where nothing was.
    """
    for name, value in given.items():
        if value is not None and not _is_function(tree[name]):
            raise ValueError(f"{path} holds its own {name}; {name}= is only for Python functions.")
    for name, saved in tree.items():
        if _is_function(saved) and given.get(name) is None:
            how = f"give it as {name}=" if name in given else "make the model with it, then resume"
            raise ValueError(
                f"{path} was made with a Python function as {name}, which is not stored in the "
                f"file; {how}."
            )
    return {name: decode(saved, given.get(name)) for name, saved in tree.items()}
