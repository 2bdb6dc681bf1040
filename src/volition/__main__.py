"""Where the command ``volition`` begins: Ctrl-C ends it quietly, also while it is still loading."""

from __future__ import annotations

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from volition.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
