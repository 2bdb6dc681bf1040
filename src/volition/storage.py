"""Files of arrays and JSON: complete or not at all, and nothing in them is ever executed."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

VERSION = 1


def write_file(
    path: Path, tensors: dict[str, np.ndarray], kind: str, header: dict[str, Any]
) -> Path:
    """Write arrays and a header to one safetensors file.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from volition.storage import read_file, write_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = write_file(Path(folder) / "a.safetensors", {"x": np.ones(2)}, "test", {"n": 1})
    ...     read_file(file, "test")
    ({'x': array([1., 1.])}, {'format': 'test', 'version': 1, 'n': 1})
    """
    check_file(path)
    # NumPy's numbers and arrays may have found their way in.
    text = json.dumps({"format": kind, "version": VERSION, **header}, default=lambda o: o.tolist())
    tensors = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        save_file(tensors, name, metadata={"volition": text})
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return path


def check_file(path: Path) -> None:
    """Raise an error unless a file can be there."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} cannot be written: it is a folder, not a file.")


def read_file(path: Path, *kinds: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the header of a file that :func:`write_file` wrote."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file.")
    if not path.is_file():
        raise FileNotFoundError(f"No such file: {path}.")
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(metadata["volition"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a file saved by volition ({error}).") from None
    if header.get("format") not in kinds or header.get("version") != VERSION:
        raise ValueError(
            f"{path} has format {header.get('format')!r}, version {header.get('version')!r}; "
            f"{' or '.join(map(repr, kinds))}, version {VERSION}, is what can be read here."
        )
    return tensors, header
