"""The command line. The only reader of argv; torch is imported by the verb that needs it, not before.

Exit codes: 0 done, or stopped by a signal and saved · 1 the run diverged, or the doctor found that training will not
work · 2 what was asked for cannot be had · 130 interrupted where there was nothing to save.
"""

import os
import sys
from importlib import import_module
from typing import NoReturn

from ..errors import Diverged, UserError, unknown
from ..files import give_up
from ..launch import speaks
from ..version import __version__

VERBS = {
    "train": "train a recipe, or the default one on your own text",
    "resume": "go on with a run that was stopped",
    "evaluate": "score a run exactly",
    "generate": "let a run write",
    "translate": "let a run translate, line by line",
    "inspect": "look at what a run's memories do with a text",
    "compare": "compare runs: curves, scores, and in what their recipes differ",
    "retrieve": "ask how much a memory holds, and whether it can overwrite",
    "data": "prepare the standard corpora",
    "import": "make a run of a checkpoint of one of the original toolkits",
    "ls": "list recipes, parts and corpora",
    "doctor": "say whether training will work on this machine, and what to do if not",
    "tune": "find faster settings of the fused kernels on this GPU",
    "completion": "let your shell complete verbs, recipes, runs, flags and parts",
}

HELP = f"""palimpsest {__version__}: language models with fast weight memory

usage: palimpsest VERB …

{chr(10).join(f"  {verb:<12}{line}" for verb, line in VERBS.items())}

`palimpsest VERB --help` tells more. A first try: palimpsest train
Verbs that report take --json: then standard output is one JSON value, and all else goes to standard error.

exit codes:
  0           done, or stopped by a signal and saved
  1           the run diverged; of doctor: training will not work here
  2           what was asked for cannot be had, and the message says why
  130         interrupted where there was nothing to save
"""


def main(arguments: list[str] | None = None) -> None:
    stand_in_for_what_has_no_code()
    try:
        obey(sys.argv[1:] if arguments is None else arguments)
    finally:
        see_written()


def obey(arguments: list[str]) -> None:
    try:
        answer(*arguments)
    except UserError as error:
        leave(2, str(error))
    except Diverged as error:
        leave(1, str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has seen enough
        pass
    except OSError as error:  # a disk or folder that may only be read, a name that is too long, a loop of links
        see_written()  # or it was standard output
        where = error.filename or "a file, or standard output"
        leave(
            2, f"{where}: {error.strerror or error}; see that it is there and can be read and written, or name another"
        )


def answer(verb: str = "help", *rest: str) -> None:
    if verb in ("-h", "--help", "help"):
        print(HELP, end="")
    elif verb == "--version":
        print(__version__)
    elif verb not in VERBS:
        raise unknown("verb", verb, list(VERBS))
    else:
        # threads that spin for long while they wait make a busy machine many times slower, and a quiet one no faster
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # a user's own parts are looked for where the user stands
        import_module(f"{__name__}.{verb}").main([*rest])


def stand_in_for_what_has_no_code() -> None:
    """A question mark, where the encoding of standard output lacks a character; all else is written as it is."""
    try:
        "…✓\udcff".encode(sys.stdout.encoding, sys.stdout.errors or "strict")  # the last is a byte that is no text
    except UnicodeEncodeError:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    except (AttributeError, TypeError):  # it is closed, or something else that knows no encodings
        pass


def see_written() -> None:
    """What was printed is on its way, or a line says why not; but not where nobody reads any more."""
    for stream in filter(None, (sys.stderr, sys.stdout)):  # one that was closed before we began is None
        try:
            stream.flush()
        except OSError as error:
            give_up(stream)
            if stream is sys.stdout and not isinstance(error, BrokenPipeError):
                leave(2, f"standard output cannot be written ({error.strerror}): make room there, or send it elsewhere")


def leave(code: int, line: str) -> NoReturn:
    if speaks():
        try:
            print(f"palimpsest: {line}", file=sys.stderr, flush=True)
        except OSError:
            give_up(sys.stderr)
    sys.exit(code)
