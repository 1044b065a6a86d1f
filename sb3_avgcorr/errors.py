"""The error that a user sees as one line, and what they may have meant."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can mend; the command line shows it as one line, without a traceback."""


def nearest(name: str, known: Iterable[str]) -> str:
    """
    End an error message about an unknown name.

    :param name: the unknown name
    :param known: the known names
    :return: a question that names the nearest known one, or the list of all
    """
    known = sorted(known)
    # Names differ in what surrounds the part that was mistyped (a namespace, "averaging_"), so compare without case too.
    by_lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.4)
    return f"did you mean {by_lower[close[0]]!r}?" if close else f"known are: {', '.join(known)}."
