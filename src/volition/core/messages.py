"""What goes into messages: values cut to a readable length, and never raw control characters."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any


class DataWarning(UserWarning):
    """Data tell less than they seem to, or part of them is not used; the sentence says why."""


#: characters of a value that a message shows
SHOWN_CHARACTERS = 60
#: names that a message lists
SHOWN_NAMES = 8


def printable(text: str, keep: str = "\n\t") -> str:
    r"""Return text in which control characters are written out, so that no terminal obeys them.

    Parameters
    ----------
    text : str
        Anything that may hold words from a file.
    keep : str
        Control characters that stay as they are.

    Returns
    -------
    str

    Examples
    --------
    >>> from volition.core.messages import printable
    >>> printable("a" + chr(27) + "[31mb")
    'a\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep or c == " " else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    # Wide spaces are not "printable" for Python, but harmless; everything else is written out.
    if character.isspace() and ord(character) >= 0xA0:
        return " "
    return character.encode("unicode_escape").decode("ascii")


def shortened(value: Any, longest: int = SHOWN_CHARACTERS) -> str:
    """Return how a message shows a value from a file: quoted if text, on one line, cut if long.

    Parameters
    ----------
    value : object
        A cell, a name, a number.
    longest : int
        Characters to show.

    Returns
    -------
    str

    Examples
    --------
    >>> from volition.core.messages import shortened
    >>> shortened("mall"), shortened(2.5)
    ("'mall'", '2.5')
    >>> shortened("9" * 5000, 6)
    "'999999...' (5000 characters)"
    """
    if isinstance(value, str):
        if len(value) <= longest:
            return printable(repr(value), "")
        return f"{printable(repr(value[:longest]), '')[:-1]}...' ({len(value)} characters)"
    text = " ".join(printable(repr(value)).split())
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)"


def a_few(names: Iterable[Any], most: int = SHOWN_NAMES) -> str:
    """Return names as a list in words; of many only the first ones, and how many there are.

    Parameters
    ----------
    names : iterable
        Of anything.
    most : int
        Names to show.

    Returns
    -------
    str

    Examples
    --------
    >>> from volition.core.messages import a_few
    >>> a_few(["mall", "port"])
    'mall, port'
    >>> a_few(range(20), most=3)
    '0, 1, 2, ... (20 in all)'
    """
    names = list(names)
    shown = [cut(name) for name in islice(names, most)]
    return ", ".join([*shown, f"... ({len(names)} in all)"] if len(names) > most else shown)


def cut(name: Any, longest: int = SHOWN_CHARACTERS) -> str:
    """Return a name as lists and pictures show it: on one line, and cut if long.

    Examples
    --------
    >>> from volition.core.messages import cut
    >>> cut("the harbour", 7)
    'the har...'
    """
    text = str(name)
    return printable(text if len(text) <= longest else f"{text[:longest]}...", "")
