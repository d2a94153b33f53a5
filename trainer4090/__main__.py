"""The command line: a verb, its words, and an exit code. Imports torch only once a run is sure to start."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from trainer4090 import __version__, help
from trainer4090.errors import ConfigError, InterruptedRunError, Problem, exit_code_of, lines_of
from trainer4090.schema import suggestion
from trainer4090.verbs import VERBS

_MULTIRUN = ("-m", "--multirun")
_FLAGS = ("-h", "--help", "--version", "--cfg", *_MULTIRUN)


def main(words: Sequence[str] | None = None) -> int:
    """Do what `words` (the process's own by default) say; the exit code. Errors are printed, never raised."""
    given = list(sys.argv[1:] if words is None else words)
    try:
        return dispatch(given)
    except KeyboardInterrupt:
        return 130
    except InterruptedRunError as stop:
        print("trainer4090: interrupted; the last finished update is saved, resume=last goes on", file=sys.stderr)
        return stop.status
    except BrokenPipeError:
        return 0  # the reader, head for one, has seen enough
    except Exception as error:
        if "debug=true" in given:
            traceback.print_exc()
        print("\n".join(lines_of(error)), file=sys.stderr)
        return exit_code_of(error)


def dispatch(words: list[str]) -> int:
    """Find the verb and run it; the exit code.

    Raises:
        TrainerError: what the verb raises, or an unknown verb or flag.
    """
    if "-h" in words or "--help" in words:
        print(help.text())
        return 0
    if "--version" in words:
        print(__version__)
        return 0
    verb, rest = _verb(words)
    flags = [word for word in rest if word.startswith("-") and "=" not in word]
    unknown = [flag for flag in flags if flag not in _FLAGS]
    if unknown:
        raise ConfigError(*(Problem(flag, "unknown flag", suggestion(flag, _FLAGS, "flags")) for flag in unknown))
    if verb in ("train", "plan"):
        rest = rest if verb == "train" else [*rest, "task=plan"]
        return _composed(rest)
    return VERBS[verb].run(rest)


def _verb(words: list[str]) -> tuple[str, list[str]]:
    if not words or words[0].startswith("-") or "=" in words[0]:
        return "train", words
    if words[0] not in VERBS:
        remedy = suggestion(words[0], VERBS, "verbs")
        raise ConfigError(Problem(words[0], "no such verb", f"{remedy}; an override is key=value"))
    return words[0], words[1:]


def _composed(words: list[str]) -> int:
    if any(word in _MULTIRUN for word in words):
        from trainer4090.multirun import multirun

        return multirun([word for word in words if word not in _MULTIRUN])
    if "--cfg" in words:
        from trainer4090.verbs.train_verb import show

        return show(words)
    task = next((word.partition("=")[2] for word in reversed(words) if word.startswith("task=")), "train")
    return VERBS["plan" if task == "plan" else "train"].run(words)


if __name__ == "__main__":
    sys.exit(main())
