"""Hydra's view of `recipes/` and of a user's own `./conf`: files that may set values and nothing else.

Hydra instantiates what its own section names before any task function runs, so a recipe with `hydra.callbacks` or a
`_target_` would be code. Everything that a user can drop into a folder therefore comes through this source, which
refuses whatever is not a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer4090 import paths
from trainer4090.errors import ConfigError, Problem

FORBIDDEN_KEYS = frozenset({"hydra", "_target_", "_partial_", "_args_", "_convert_", "_recursive_", "()"})
_RESOLVER = re.compile(r"\$\{[^}]*:")
_CODE_TAG = re.compile(r"(^|[\s\[{,:-])!{1,2}[A-Za-z<]")


def problems_of(path: Path, text: str, header: dict[str, str], is_recipe: bool) -> list[Problem]:
    """Everything in the file that is more than a value, or that would quietly have no effect."""
    package = header.get("package")
    problems = []
    if is_recipe and package != "_global_":
        given = f"the first line is no '# @package _global_' header (package: {package})"
        problems.append(Problem(str(path), given, "without it every value would land below 'recipe': add that line"))
    elif package is not None and package.split(".")[0] == "hydra":
        problems.append(Problem(str(path), f"@package {package}", "a file may not place values in Hydra's own section"))
    if _CODE_TAG.search(text):
        problems.append(Problem(str(path), "a YAML tag (!...)", "write plain values"))
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        return [*problems, Problem(str(path), f"not readable as YAML ({where})", "correct the file")]
    if tree is None:
        return problems
    if not isinstance(tree, dict):
        return [*problems, Problem(str(path), "holds no mapping", "write 'key: value' lines")]
    defaults = tree.pop("defaults", [])
    if "hydra" in str(defaults):
        problems.append(Problem(str(path), "its defaults list names hydra", "recipes choose options of our groups only"))
    return problems + list(_tree_problems(path, tree, ""))


def _tree_problems(path: Path, tree: Any, prefix: str) -> Iterator[Problem]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            name = f"{prefix}{key}"
            if key in FORBIDDEN_KEYS:
                yield Problem(str(path), f"key {name!r}", "a file may set values, not run code or steer Hydra")
            elif not isinstance(key, str) or not key or "." in key:
                yield Problem(str(path), f"key {name!r}", "keys are plain words; nest sections instead of dots")
            else:
                yield from _tree_problems(path, value, f"{name}.")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _tree_problems(path, value, f"{prefix}{index}.")
    elif isinstance(tree, str) and _RESOLVER.search(tree):
        yield Problem(str(path), f"{prefix.rstrip('.')} = {tree!r}", "only plain references like ${optimizer.lr} are read")


class CheckedSource(ConfigSource):
    """A folder called `recipes` holds recipes; any other holds a folder a group."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider=provider, path=path)
        self._root = Path(self.path)

    @staticmethod
    def scheme() -> str:
        """Word before `://` in the search path."""
        return "checked"

    def available(self) -> bool:
        """Whether the folder exists."""
        return self._root.is_dir()

    def load_config(self, config_path: str) -> ConfigResult:
        """The file's values.

        Raises:
            ConfigError: it holds something other than values.
        """
        path = self._file(config_path)
        if path is None or not path.is_file():
            raise ConfigLoadError(f"Config not found: {config_path}")
        text = path.read_text(encoding="utf-8")
        header = self._get_header_dict(text)
        problems = problems_of(path, text, header, self._is_recipes())
        if problems:
            raise ConfigError(*problems)
        try:
            config = OmegaConf.create(text) if yaml.safe_load(text) else OmegaConf.create({})
        except OmegaConfBaseException as error:
            raise ConfigError(Problem(str(path), str(error).splitlines()[0], "correct the file")) from error
        return ConfigResult(config=config, path=f"checked://{self.path}", provider=self.provider, header=header)

    def is_group(self, config_path: str) -> bool:
        """Whether the path is a group: top-level files of a user's `./conf` are none of ours."""
        if self._is_recipes():
            return config_path.strip("/") in ("", "recipe")
        return config_path.strip("/") == "" or (self._root / config_path.strip("/")).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Whether the path is a file of a group."""
        path = self._file(config_path)
        return path is not None and path.is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Groups or options below the path."""
        inner = config_path.strip("/")
        if self._is_recipes():
            groups, files = (["recipe"], []) if inner == "" else ([], self._stems(self._root))
        else:
            folder = self._root / inner
            groups = sorted(child.name for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
            files = self._stems(folder) if inner else []
        wanted_groups = groups if results_filter in (None, ObjectType.GROUP) else []
        wanted_files = files if results_filter in (None, ObjectType.CONFIG) else []
        return sorted({*wanted_groups, *wanted_files})

    def _is_recipes(self) -> bool:
        return self._root.name == "recipes"

    @staticmethod
    def _stems(folder: Path) -> list[str]:
        return sorted(path.stem for path in folder.glob("*.yaml"))

    def _file(self, config_path: str) -> Path | None:
        name = self._normalize_file_name(config_path)
        if self._is_recipes():
            return self._root / name.removeprefix("recipe/") if name.startswith("recipe/") else None
        return self._root / name if "/" in name else None


class SearchPath(SearchPathPlugin):
    """Put the user's own folders before the shipped ones."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add `./recipes`, the shipped recipes and `./conf`."""
        for folder in paths.user_folders("conf"):
            search_path.prepend(provider="your ./conf", path=f"checked://{folder}")
        search_path.append(provider="recipes", path=f"checked://{paths.RECIPES}")
        for folder in paths.user_folders("recipes"):
            search_path.prepend(provider="your ./recipes", path=f"checked://{folder}")
