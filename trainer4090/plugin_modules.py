"""Modules of plugins: each is imported once a process, and an error of a user's code is traced to its line.

A file given by its path is imported under a name of its own, which no worker process could import. `Imports` therefore
carries the files along: pickled before an object of theirs, it makes them importable before that object is rebuilt.
"""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer4090.errors import ConfigError, Problem, TrainerError
from trainer4090.registry import ContractError
from trainer4090.schema import shown
from trainer4090.spec import PluginRecord

_OURS = Path(__file__).resolve().parent
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_LONGEST_TEXT = 200
"""Characters of an exception's text that an error line shows."""
SHOWN_DIGITS = 12
"""Of a sha256."""


@dataclass(frozen=True)
class PluginModule:
    """An imported plugin."""

    record: PluginRecord
    module: str
    """Its name in `sys.modules`."""
    folder: Path | None
    """Where further code of the plugin lies; None when the file stands alone."""
    source: bytes | None
    """Content of a file that was given by its path."""


_loaded: dict[str, PluginModule] = {}


def loaded() -> list[PluginModule]:
    """All plugins of this process."""
    return list(_loaded.values())


def find(module: str) -> PluginModule | None:
    """The plugin whose module has this name."""
    return _loaded.get(module)


def add(plugin: PluginModule) -> None:
    """Note an imported plugin; its code is known to `blamed` from then on."""
    _loaded[plugin.module] = plugin


def drop(module: str) -> None:
    """Forget a plugin that could not be imported."""
    _loaded.pop(module, None)
    sys.modules.pop(module, None)


def execute(plugin: PluginModule) -> None:
    """Import the file of `plugin` from the content that was read and hashed.

    Raises:
        BaseException: what the file raises.
    """
    assert plugin.source is not None
    module = types.ModuleType(plugin.module)
    module.__file__ = plugin.record.path
    sys.modules[plugin.module] = module  # before it runs: dataclasses look their module up
    exec(compile(plugin.source, plugin.record.path, "exec", dont_inherit=True), module.__dict__)


class Imports:
    """Pickles as the files of all plugins; they are imported where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Imports], tuple[list[PluginModule]]]:
        """Names and contents of the files."""
        return _imported, ([plugin for plugin in loaded() if plugin.source is not None],)


def _imported(plugins: list[PluginModule]) -> Imports:
    for plugin in plugins:
        if plugin.module not in _loaded:
            add(plugin)
            execute(plugin)
    return Imports()


def blamed(error: BaseException) -> BaseException:
    """`error`, or, when a plugin's code raised it, an error that names the line."""
    if isinstance(error, TrainerError) or not isinstance(error, (Exception, SystemExit)):
        return error
    where = place_of(error)
    if where is None:
        return error
    if isinstance(error, ContractError):
        return ConfigError(Problem(where, error.given, error.remedy))
    remedy = "correct the plugin (debug=true prints the traceback)"
    return ConfigError(Problem(where, text_of(error), remedy))


def text_of(error: BaseException) -> str:
    """Kind and text of an exception, in one line without ';'."""
    text = " ".join(str(error).split()).replace(";", ",")
    text = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place_of(error: BaseException) -> str | None:
    """`file:line` of the innermost code of a plugin that an exception went through, None without any."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        plugin = _owner(error.filename)
        if plugin is not None:
            return place(plugin, error.filename, error.lineno)
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    for filename, line in reversed(frames):
        plugin = _owner(filename)
        if plugin is not None:
            return place(plugin, filename, line)
    return None


def place(plugin: PluginModule, filename: str, line: int) -> str:
    """A line of a plugin's code as an error names it: the plugin's own file as it was typed."""
    if filename == plugin.record.path and filename.endswith(plugin.record.name.lstrip("./")):
        return f"{plugin.record.name}:{line}"
    path = Path(filename)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"


def _owner(filename: str) -> PluginModule | None:
    """The plugin that a file belongs to: its own file, or one beside it that is neither ours nor installed."""
    path = Path(filename)
    for plugin in loaded():
        if filename == plugin.record.path:
            return plugin
    for plugin in loaded():
        if plugin.folder is not None and path.is_relative_to(plugin.folder) and not path.is_relative_to(_OURS):
            installed = _INSTALLED & set(path.relative_to(plugin.folder).parts)
            if not installed:
                return plugin
    return None


def require(saved: Any, file: Path, notice: Callable[[str], None] | None) -> None:
    """Raise unless the plugins that a run was made with are loaded. They are never loaded from here.

    `saved`: the key `plugin` of the run's `file`. `notice`: told of a plugin that has changed since, which is an error
    without it.

    Raises:
        ConfigError: with what to type.
    """
    records = [_record(each) for each in saved if isinstance(each, dict)] if isinstance(saved, list) else []
    present = [plugin.record for plugin in loaded()]
    missing = []
    for record in records:
        if any(record.sha256 == each.sha256 for each in present):
            continue
        changed = next((each for each in present if _same(record, each)), None)
        if changed is None:
            missing.append(record)
            continue
        given = f"sha256 {changed.sha256[:SHOWN_DIGITS]}, but {file} was made with {record.sha256[:SHOWN_DIGITS]}"
        if notice is None:
            remedy = "bring back the code that it was made with, or start a new run without resume"
            raise ConfigError(Problem(f"plugin {changed.name}", given, remedy))
        notice(f"plugin {changed.name} has {given}")
    if missing:
        raise ConfigError(_not_loaded(missing, file))


def _record(tree: dict[str, Any]) -> PluginRecord:
    name, path, sha256 = (str(tree.get(key)) for key in ("name", "path", "sha256"))
    return PluginRecord(name, path, sha256, tree.get("distribution"))


def _same(record: PluginRecord, other: PluginRecord) -> bool:
    return record.name == other.name or record.path == other.path or Path(record.path).name == Path(other.path).name


def _not_loaded(missing: Iterable[PluginRecord], file: Path) -> Problem:
    installed = [record.distribution for record in missing if record.distribution is not None]
    if installed:
        return Problem("plugin", f"{file} was made with {', '.join(installed)}", "install it again")
    words = [record.name if _leads_to(record) else record.path for record in missing]
    typed = words[0] if len(words) == 1 else f"[{','.join(words)}]"
    given = f"{file} was made with {' and '.join(record.name for record in missing)}, which only a command line loads"
    return Problem("plugin", given, f"type it again: plugin={typed}")


def _leads_to(record: PluginRecord) -> bool:
    """Whether the name, as it was typed, still means the same from this directory."""
    return not record.name.endswith(".py") or str(Path(record.name).resolve()) == record.path


def listed(value: Any) -> list[str]:
    """The names in a value of `plugin`: null, one, or a list.

    Raises:
        ConfigError: it is something else.
    """
    names = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) and name for name in names):
        remedy = "give a file (./mine.py), a module (package.module), or a list of them"
        raise ConfigError(Problem("plugin", shown(value), remedy))
    return names
