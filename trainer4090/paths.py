"""Where configuration files lie: in a checkout, an editable install or a wheel, and in the user's own folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
DATA_ROOT = PACKAGE.parent if (PACKAGE.parent / "conf" / "config.yaml").is_file() else PACKAGE
"""Holds `conf/` and `recipes/`: the checkout, or the package itself inside a wheel."""
CONF = DATA_ROOT / "conf"
RECIPES = DATA_ROOT / "recipes"
_of_plugins: dict[str, dict[str, Path]] = {}


def user_folders(name: str) -> list[Path]:
    """`./conf` or `./recipes` of the working directory if there is one that is not the shipped one; else nothing."""
    folder = Path.cwd() / name
    return [folder] if folder.is_dir() and folder.resolve() != (DATA_ROOT / name).resolve() else []


def options(group: str) -> dict[str, Path]:
    """Option name -> YAML file of a group, the user's own files before the shipped ones, sorted by name.

    An option of a plugin without a YAML of its own leads to the file that registers it.
    """
    found: dict[str, Path] = {}
    for folder in _folders(group):
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    for name, origin in _of_plugins.get(group, {}).items():
        found.setdefault(name, origin)
    return dict(sorted(found.items()))


def of_plugins() -> dict[str, dict[str, Path]]:
    """Group -> option name -> the file of the plugin that registers it; such an option needs no YAML."""
    return {group: dict(names) for group, names in _of_plugins.items()}


def put_of_plugins(names: Mapping[str, Mapping[str, Path]]) -> None:
    """Let `names` be the options of plugins."""
    _of_plugins.clear()
    _of_plugins.update({group: dict(origins) for group, origins in names.items()})


def groups() -> list[str]:
    """Names of all configuration groups."""
    return sorted(path.name for path in CONF.iterdir() if path.is_dir())


def _folders(group: str) -> list[Path]:
    folders = [folder / group for folder in user_folders("conf")]
    if group == "recipe":
        folders += [*user_folders("recipes"), RECIPES]
    return [*folders, CONF / group]
