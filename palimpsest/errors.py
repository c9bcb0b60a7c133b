"""What can go wrong and is not our fault: said in one clear line, never as a traceback."""

from difflib import get_close_matches


class UserError(ValueError):
    """Something asked for cannot be had. The message says what was asked, what was found, what to do."""


class Diverged(Exception):
    """The loss or a gradient stopped being a finite number."""


def unknown(kind: str, name: str, known: list[str]) -> UserError:
    """`unknown part 'Detla'; did you mean Delta? There are: Delta, Sum`"""
    close = get_close_matches(name, known, n=1, cutoff=0.5) or get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    suggestion = f"; did you mean {close[0]}?" if close else "."
    return UserError(f"unknown {kind} {name!r}{suggestion} There are: {', '.join(sorted(known))}")
