"""Importing plugins: files and modules of `plugin=`, and entry points of installed packages. Nothing in a YAML."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from trainer4090 import paths, plugin_modules
from trainer4090.errors import ConfigError, Problem
from trainer4090.parse import REGISTRIES
from trainer4090.plugin_modules import PluginModule
from trainer4090.plugins import builders, contract
from trainer4090.registry import Entry
from trainer4090.schema import nearest
from trainer4090.spec import PluginRecord

ENTRY_POINTS = "trainer4090.plugins"
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_NO_LIST = "a value that can change is no default: write NAME: tuple[int, ...] = (1, 2)"
_NO_SCRIPT = "put what the file does as a script under: if __name__ == '__main__':"

Options = dict[str, list[str]]
"""Group -> names that a plugin registered."""
_options: dict[str, Options] = {}
"""Module of a plugin -> its options."""


def load(words: Sequence[str]) -> None:
    """Import the plugins of `words` and of installed packages, each once a process, and fit in what they register.

    Raises:
        ConfigError: one cannot be imported, or registers something that breaks the contract. It leaves nothing behind.
    """
    installed = importlib.metadata.entry_points(group=ENTRY_POINTS)
    for point in sorted(installed, key=lambda point: point.name):
        _load_entry_point(point)
    for word in words:
        _load_file(word) if is_file(word) else _load_module(word)


def is_file(word: str) -> bool:
    """Whether a name of `plugin=` is a path rather than a module."""
    return word.endswith(".py") or "/" in word


def module_of(word: str) -> str:
    """The name in `sys.modules` of what a name of `plugin=` means from this directory."""
    if not is_file(word):
        return word
    path = Path(word).resolve()
    stem = re.sub(r"\W", "_", path.stem)
    # Two files of one name stay apart, and neither can hide an installed module.
    return f"trainer4090_plugin_{stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def options_of(module: str) -> Options:
    """What the plugin in this module registered, by group."""
    return _options.get(module, {})


def plugin_of(group: str, name: str) -> PluginModule | None:
    """The plugin that registered an option, None for one of ours."""
    return next((each for each in plugin_modules.loaded() if name in options_of(each.module).get(group, ())), None)


def _load_file(word: str) -> None:
    module, path = module_of(word), Path(word).resolve()
    if plugin_modules.find(module) is not None:
        return
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(_no_file(word, error)) from error
    record = PluginRecord(word, str(path), hashlib.sha256(source).hexdigest(), None)
    _make_importable(path.parent)
    plugin = PluginModule(record, module, path.parent, source)
    _register(plugin, lambda: plugin_modules.execute(plugin))


def _load_module(word: str) -> None:
    if plugin_modules.find(word) is not None:
        return
    if not _MODULE.fullmatch(word):
        remedy = "give a file (plugin=./mine.py) or a module (plugin=package.module)"
        raise ConfigError(Problem("plugin", f"{word!r} is neither a file nor a module", remedy))
    _make_importable(Path.cwd())
    _import_module(word, word, None)


def _load_entry_point(point: importlib.metadata.EntryPoint) -> None:
    module = point.value.partition(":")[0].strip()
    if plugin_modules.find(module) is None:
        package = point.dist
        _import_module(point.name, module, None if package is None else f"{package.name} {package.version}")


def _import_module(name: str, module: str, distribution: str | None) -> None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        spec = None  # a parent that is no package
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise ConfigError(_no_module(name, module, distribution))
    path = Path(spec.origin).resolve()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    depth = module.count(".") + (path.name == "__init__.py")
    folder = path.parents[depth - 1] if depth else None
    plugin = PluginModule(PluginRecord(name, str(path), digest, distribution), module, folder, None)
    _register(plugin, lambda: importlib.import_module(module))


def _register(plugin: PluginModule, execute: Callable[[], ModuleType | None]) -> None:
    """Import a plugin, and keep what it registers if all of it is sound."""
    before = {group: registry.entries() for group, registry in REGISTRIES.items()}
    plugin_modules.add(plugin)
    try:
        _run(plugin, execute)
        new = {group: _added(entries, REGISTRIES[group].entries()) for group, entries in before.items()}
        problems = [
            problem for group in new for entry in new[group] for problem in contract.check(plugin, group, entry)
        ]
        if problems:
            raise ConfigError(*problems)
    except BaseException:
        plugin_modules.drop(plugin.module)
        for group, old in before.items():
            REGISTRIES[group].put(old)
        raise
    _options[plugin.module] = {group: [entry.name for entry in entries] for group, entries in new.items() if entries}
    for group, entries in new.items():
        fitted = {entry.name: builders.fitted(plugin, group, entry) for entry in entries}
        REGISTRIES[group].put({**before[group], **fitted})
    origin = Path(plugin.record.path)
    offered = paths.of_plugins()
    for group, names in _options[plugin.module].items():
        offered[group] = offered.get(group, {}) | dict.fromkeys(names, origin)
    paths.put_of_plugins(offered)


def _added(before: dict[str, Entry], after: dict[str, Entry]) -> list[Entry]:
    return [entry for name, entry in after.items() if name not in before]


def _run(plugin: PluginModule, execute: Callable[[], ModuleType | None]) -> None:
    """Import it.

    Raises:
        ConfigError: it raised something; the message has the line.
    """
    try:
        execute()
    except (Exception, SystemExit) as error:
        blamed = plugin_modules.blamed(error)
        where = plugin_modules.place_of(error) or plugin.record.name
        if isinstance(error, ValueError) and str(error).startswith("mutable default"):
            blamed = ConfigError(Problem(where, plugin_modules.text_of(error), _NO_LIST))
        elif isinstance(error, SystemExit):
            blamed = ConfigError(Problem(where, "ends the process when it is imported", _NO_SCRIPT))
        elif blamed is error:  # no line of the plugin was reached: no UTF-8, or a null byte
            problem = Problem(plugin.record.name, plugin_modules.text_of(error), _unreadable(plugin))
            blamed = ConfigError(problem)
        raise blamed from error


def _unreadable(plugin: PluginModule) -> str:
    owner = plugin.record.distribution
    return "give a file of Python in UTF-8" if owner is None else f"correct it, or: pip uninstall {owner.split()[0]}"


def _make_importable(folder: Path) -> None:
    """Let a plugin import the files beside it. At the end of the path: none of them hides an installed module."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _no_file(word: str, error: OSError) -> Problem:
    path = Path(word)
    if path.is_dir():
        return Problem("plugin", f"{word} is a folder", f"name the file in it: plugin={word.rstrip('/')}/FILE.py")
    if not isinstance(error, FileNotFoundError):
        return Problem("plugin", f"{word} cannot be read ({error.strerror})", "give a file of Python that you may read")
    folder = path.parent if path.parent.is_dir() else Path()
    close = nearest(path.stem, [each.stem for each in folder.glob("*.py")])
    near = f"{folder / close[0]}.py" if close else ""
    shown = near if folder.is_absolute() or near.startswith("..") else f"./{near}"
    remedy = f"did you mean plugin={shown}?" if close else f"a path counts from {Path.cwd()}"
    return Problem("plugin", f"{word} does not exist", remedy)


def _no_module(name: str, module: str, distribution: str | None) -> Problem:
    if distribution is not None:
        given = f"the entry point {name} of {distribution} names no module of Python ({module})"
        return Problem("plugin", given, f"install it again, or: pip uninstall {distribution.split()[0]}")
    return Problem("plugin", f"there is no module {module}", "give a module that Python finds, or a file: ./FILE.py")
