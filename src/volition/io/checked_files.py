"""Files of arrays and JSON: complete or not at all, checked on reading, never executed.

A file carries a checksum of all that it holds. A file that is cut short or has a wrong bit anywhere
is refused; so is one whose parts do not fit together. Every refusal is one sentence that names the
file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

VERSION = 3
#: longest piece of a damaged file or foreign error message that is shown
SHOWN = 120
#: what a file of ours must not stop at, whatever is in it
DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
#: seconds after which something temporary of another machine is taken for left behind
OLD = 24 * 3600.0
_LEFT = re.compile(r"\.volition-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-")


class WriteError(OSError):
    """A file that cannot be written, and why; what was there before is still there."""

    def __init__(self, path: Any, reason: str) -> None:
        super().__init__(f"{path} cannot be written: {reason}.")
        self.path, self.reason = path, reason


def write_file(
    path: Path, tensors: dict[str, np.ndarray], kind: str, header: dict[str, Any]
) -> Path:
    """Write arrays and a header to one safetensors file.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from volition.io.checked_files import read_file, write_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = write_file(Path(folder) / "a.safetensors", {"x": np.ones(2)}, "test", {"n": 1})
    ...     read_file(file, "test")
    ({'x': array([1., 1.])}, {'format': 'test', 'version': 3, 'n': 1})
    """
    check_file(path)
    text = json.dumps({"format": kind, "version": VERSION, **header}, allow_nan=False)
    tensors = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    about = {"volition": text, "sha256": checksum(text, tensors)}
    replace_file(path, lambda name: save_file(tensors, name, metadata=about))
    return path


def replace_file(path: Path, write: Callable[[str], Any]) -> None:
    """Let ``write`` fill a temporary file, then put it in place; on failure nothing changes.

    Raises WriteError, which names ``path``, where the disk is full or the folder takes no files.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from volition.io.checked_files import replace_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "note.txt"
    ...     replace_file(file, lambda name: Path(name).write_text("here"))
    ...     file.read_text()
    'here'
    """
    with naming(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=temporary_prefix())
        os.close(handle)
        try:
            write(name)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise


@contextmanager
def naming(path: Any) -> Iterator[None]:
    """Turn what a disk or folder refuses into one sentence that names the file."""
    try:
        yield
    except WriteError:
        raise
    except (SafetensorError, OSError) as error:
        raise WriteError(path, reason_of(error)) from None


def reason_of(error: BaseException) -> str:
    """Return why something failed, in a few words on one line.

    Examples
    --------
    >>> from volition.io.checked_files import reason_of
    >>> reason_of(OSError(28, "No space left on device"))
    'No space left on device'
    """
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    # safetensors: "Error while serializing: I/O error: No space left on device (os error 28)"
    text = re.sub(r" \(os error \d+\)", "", " ".join(text.split())).split("I/O error: ")[-1]
    return shown(text).rstrip(". ")


def shown(text: str) -> str:
    r"""Return text as it can stand in a sentence: printable, and not too long.

    Examples
    --------
    >>> from volition.io.checked_files import shown
    >>> shown("a\nb")
    'a\\nb'
    """
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: SHOWN + 1])
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def checksum(text: str, tensors: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of a header and of all arrays with their names, types and shapes."""
    seen = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        value = tensors[name]
        label = json.dumps([name, value.dtype.str, list(value.shape)])
        seen.update(label.encode())
        seen.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return seen.hexdigest()


def check_file(path: Path) -> None:
    """Raise an error unless a file can be there."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} cannot be written: it is a folder, not a file.")


def read_file(path: Path, *kinds: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the header of a file that :func:`write_file` wrote, undamaged."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file.")
    if not path.is_file():
        raise FileNotFoundError(f"No such file: {path}.")
    try:
        with safe_open(str(path), framework="numpy") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = about.get("volition", "null")
        header = json.loads(text)
    except (SafetensorError, OSError, *DAMAGE) as error:
        raise ValueError(f"{path} is not a file saved by volition ({reason_of(error)}).") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path} is not a file saved by volition (it has no header of ours).")
    whole = about.get("sha256") == checksum(text, tensors)
    damage = f"{path} is damaged: its content does not match its checksum."
    if "sha256" in about and not whole:
        raise ValueError(damage)
    if header.get("version") in range(1, VERSION):
        raise ValueError(
            f"{path} was written by an older version of volition, whose files cannot be read here: "
            "make it again, or read it with the version that wrote it."
        )
    if header.get("format") not in kinds or header.get("version") != VERSION:
        found, version = (shown(repr(header.get(key))) for key in ("format", "version"))
        raise ValueError(
            f"{path} has format {found}, version {version}; "
            f"{' or '.join(map(repr, kinds))}, version {VERSION}, is what can be read here."
        )
    if not whole:
        raise ValueError(damage)
    return tensors, header


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a file is taken apart into one sentence that names it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from volition.io.checked_files import reading
    >>> with reading(Path("a.safetensors")):
    ...     {}["beta_"]
    Traceback (most recent call last):
    ValueError: a.safetensors cannot be used: 'beta_' is missing in it.
    """
    try:
        yield
    except DAMAGE as error:
        if isinstance(error, ValueError) and str(error).startswith(f"{path} "):
            raise  # it is a sentence about this file already
        why = f"{shown(str(error))} is missing in it" if isinstance(error, KeyError) else None
        raise ValueError(f"{path} cannot be used: {why or reason_of(error)}.") from error


def expect(
    tensors: Mapping[str, Any], name: str, shape: tuple[int | None, ...], kind: str = "f"
) -> np.ndarray:
    """Return an array of a tree, of this shape (None: any length) and kind, all finite.

    Examples
    --------
    >>> import numpy as np
    >>> from volition.io.checked_files import expect
    >>> expect({"x": np.ones((2, 3))}, "x", (None, 3)).shape
    (2, 3)
    """
    value = tensors[name]
    if not isinstance(value, np.ndarray):
        raise ValueError(f"'{name}' is {shown(repr(value))}, not an array")
    fits = value.ndim == len(shape) and all(
        size is None or size == found for size, found in zip(shape, value.shape, strict=False)
    )
    if not fits:
        wanted = tuple("any" if size is None else size for size in shape)
        raise ValueError(f"'{name}' has shape {value.shape}, not {wanted}")
    if value.dtype.kind not in kind:
        raise ValueError(f"'{name}' holds {value.dtype}, which it cannot")
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise ValueError(f"'{name}' holds a number that is not finite")
    return value


# -- what killed runs leave behind ----------------------------------------------------------------


def temporary_prefix() -> str:
    """Return how names of temporary files and folders begin: they say whose they are."""
    machine = platform.node()
    with suppress(OSError):  # containers count processes on their own
        machine += f" {os.stat('/proc/self/ns/pid').st_ino}"
    return f".volition-{hashlib.sha256(machine.encode()).hexdigest()[:8]}-{os.getpid()}-"


def sweep(folder: Path) -> None:
    """Remove temporary files and folders that killed runs have left in a folder.

    Only what carries our name, and is of a process of this machine that is no longer there; of
    another machine that shares the folder, only what has not changed for a day.
    """
    mine = _LEFT.match(temporary_prefix())
    assert mine is not None
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            left = _LEFT.match(entry.name)
            if left is None:
                continue
            here = left["machine"] == mine["machine"] and os.name == "posix"
            with suppress(OSError):
                gone = _ended(int(left["process"])) if here else _untouched(entry)
                if not gone:
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()


def _ended(process: int) -> bool:
    try:
        os.kill(process, 0)  # asks, and sends nothing
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # somebody else's, alive
        return False
    return False


def _untouched(entry: Path) -> bool:
    return time.time() - entry.lstat().st_mtime > OLD
