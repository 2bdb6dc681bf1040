"""Names of a package that are loaded when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package that loads its names when they are used.

    Parameters
    ----------
    package : str
        The package's ``__name__``.
    homes : mapping of str to sequence of str
        The public names that each module holds.
    modules : sequence of str
        Modules of the package that are public themselves.

    Returns
    -------
    tuple of two functions
        ``__getattr__`` and ``__dir__``.

    Examples
    --------
    >>> from volition.core.lazy import lazy_names
    >>> load, names = lazy_names("volition.core", {"volition.core.messages": ["shortened"]})
    >>> load("shortened")("mall")
    "'mall'"
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name in home_of:
            value = getattr(import_module(home_of[name]), name)
        elif name in modules:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)  # so that the next use does not come here
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of, *modules})

    return __getattr__, __dir__
