"""The command line: a verb, its words, and an exit code. Imports torch only once a run is sure to start."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer4090 import __version__, help, paths
from trainer4090.errors import ConfigError, Problem, exit_code_of, lines_of
from trainer4090.plugin_modules import blamed
from trainer4090.plugins.loading import load
from trainer4090.schema import suggestion
from trainer4090.verbs import VERBS

_HELP = ("-h", "--help")
_MULTIRUN = ("-m", "--multirun")
_SHOW = ("-c", "--cfg")
_FLAGS = (*_HELP, *_MULTIRUN, *_SHOW, "--version")
COMPOSED = ("train", "plan", "ablate")
"""Verbs whose words are overrides of a whole run, so that they can be shown and swept."""


@dataclass(frozen=True)
class _Line:
    """A command line taken apart."""

    verb: str
    words: list[str]
    """Without verb and flags."""
    multirun: bool
    show: bool


def main(words: Sequence[str] | None = None) -> int:
    """Do what `words` (the process's own by default) say; the exit code. Errors are printed, never raised."""
    given = list(sys.argv[1:] if words is None else words)
    try:
        return dispatch(given)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0  # the reader, head for one, has seen enough
    except Exception as error:
        if "debug=true" in given:
            traceback.print_exc()
        error = blamed(error)
        print("\n".join(lines_of(error)), file=sys.stderr)
        return exit_code_of(error)


def dispatch(words: list[str]) -> int:
    """Find the verb and run it; the exit code.

    Raises:
        TrainerError: what the verb raises, or an unknown verb or flag.
    """
    words, given = _with_plugins(words), words
    if any(word in _HELP for word in words):
        verb = next((verb for size in (2, 1) if (verb := VERBS.get(" ".join(words[:size])))), None)
        print(help.of_verb(verb) if verb is not None and verb.has_keys else help.text())
        return 0
    if "--version" in words:
        print(__version__)
        return 0
    line = _read(words)
    if line.verb not in COMPOSED:
        return VERBS[line.verb].run(line.words)
    from trainer4090.finetune.start import settled

    line = _read(given)  # the names of plugins belong to a run
    overrides = [settled(word) for word in line.words] + ([] if line.verb == "train" else [f"task={line.verb}"])
    if line.multirun:
        from trainer4090.sweeps.multirun import multirun
        from trainer4090.verbs.settling import settle

        return multirun(overrides, settle)
    if line.show:
        return _show(overrides)
    task = next(
        (word.partition("=")[2].strip("\"'") for word in reversed(overrides) if word.startswith("task=")), "train"
    )
    return VERBS[task if task in COMPOSED else "train"].run(overrides)  # a wrong task is refused by what reads it


def _with_plugins(words: list[str]) -> list[str]:
    """The words without `plugin=`, whose code is loaded: it decides what may be listed, chosen and composed.

    Raises:
        ConfigError: it cannot be loaded.
    """
    names: list[str] = []
    if any(word.startswith("plugin=") for word in words):
        from trainer4090.composition import plugin_words

        names, words = plugin_words.split(words)
    load(names)
    return words


def _read(words: Sequence[str]) -> _Line:
    """The parts of a command line.

    Raises:
        ConfigError: a verb or a flag is none of ours, or does not go with the others.
    """
    verb, rest = _verb(words)
    plain: list[str] = []
    flags: list[str] = []
    problems: list[Problem] = []
    following = iter(rest)
    for word in following:
        flag, separator, value = word.partition("=")
        if not word.startswith("-"):
            plain.append(word)
        elif flag in _SHOW:
            flags.append("--cfg")
            problems += _shown(flag, value if separator else next(following, ""))
        elif word in _MULTIRUN:
            flags.append("-m")
        else:
            problems.append(Problem(flag, "unknown flag", suggestion(flag, _FLAGS, "flags")))
    problems += _clashes(verb, flags)
    if problems:
        raise ConfigError(*problems)
    return _Line(verb, plain, multirun="-m" in flags, show="--cfg" in flags)


def _verb(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The verb, of one or two words, and what follows it; `train` without one.

    Raises:
        ConfigError: the first word is neither a verb nor an override nor a flag.
    """
    for size in (2, 1):
        verb = " ".join(words[:size])
        if verb in VERBS:
            return verb, words[size:]
    if not words or "=" in words[0] or words[0].startswith(("-", "+", "~")):
        return "train", words
    word = words[0]
    if word in paths.groups():
        remedy = f"an override is key=value: type {word}=OPTION with one of {', '.join(paths.options(word))}"
        remedy += "".join(f", or the verb {verb}" for verb in VERBS if verb.startswith(f"{word} "))
        raise ConfigError(Problem(word, "neither a verb nor an override", remedy))
    if "." in word:
        raise ConfigError(Problem(word, "neither a verb nor an override", f"an override is key=value: type {word}=..."))
    remedy = f"{suggestion(word, VERBS, 'verbs')}; an override is key=value"
    raise ConfigError(Problem(word, "no such verb", remedy))


def _shown(flag: str, what: str) -> Iterator[Problem]:
    if what != "job":
        yield Problem(flag, repr(what) if what else "nothing", "allowed is job: --cfg job")


def _clashes(verb: str, flags: Sequence[str]) -> Iterator[Problem]:
    if "-m" in flags and "--cfg" in flags:
        yield Problem("--cfg", "beside -m", "it prints one configuration: leave -m out")
    for flag in dict.fromkeys(flags):
        if verb not in COMPOSED:
            yield Problem(flag, f"with the verb {verb}", f"it goes with {', '.join(COMPOSED)}: leave it out")


def _show(words: Sequence[str]) -> int:
    """Print the composed configuration, checked like a run's."""
    from trainer4090.composition import compose
    from trainer4090.parse import parse
    from trainer4090.spec import dump

    print(dump(parse(compose(words).tree)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
