"""The console that commands print on: words from files cannot command the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from volition.core.messages import printable


class PlainConsole(Console):
    r"""A console that writes out the control characters of every text that it is given.

    Examples
    --------
    >>> from volition.cli.terminal import PlainConsole
    >>> PlainConsole(markup=False).print("a" + chr(27) + "[31mb")
    a\x1b[31mb
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text as rich shows it; every string that is printed comes through here."""
        return super().render_str(printable(text), **options)


def make_console(stderr: bool = False) -> PlainConsole:
    """Return the console on which a command prints, as it is, without colours or markup."""
    return PlainConsole(stderr=stderr, highlight=False, soft_wrap=True, markup=False)
