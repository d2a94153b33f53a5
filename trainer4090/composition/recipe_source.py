"""Hydra's view of `recipes/` and of a user's own `./conf`: files of our groups, each checked before Hydra sees it."""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer4090 import paths
from trainer4090.composition import plugin_source, recipe_file
from trainer4090.errors import ConfigError, Problem


class CheckedSource(ConfigSource):
    """A folder called `recipes` holds recipes; any other holds a folder a group. Everything else in it is ignored."""

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
        header = self._get_header_dict(path.read_text(encoding="utf-8", errors="replace"))
        content = recipe_file.read(path, config_path.strip("/").partition("/")[0], header.get("package"))
        if content.problems:
            raise ConfigError(*content.problems)
        try:
            config = OmegaConf.create(content.tree)
        except OmegaConfBaseException as error:
            raise ConfigError(Problem(str(path), str(error).splitlines()[0], "correct the file")) from error
        return ConfigResult(config=config, path=f"checked://{self.path}", provider=self.provider, header=header)

    def is_group(self, config_path: str) -> bool:
        """Whether the path is one of our groups that has a folder here."""
        group = config_path.strip("/")
        folder = self._folder(group)
        return group == "" or (folder is not None and folder.is_dir())

    def is_config(self, config_path: str) -> bool:
        """Whether the path is a file of a group."""
        path = self._file(config_path)
        return path is not None and path.is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Groups or options below the path."""
        group = config_path.strip("/")
        names: set[str] = set()
        if results_filter in (None, ObjectType.GROUP) and group == "":
            names |= {name for name in paths.groups() if self.is_group(name)}
        if results_filter in (None, ObjectType.CONFIG) and (folder := self._folder(group)) is not None:
            names |= {path.stem for path in folder.glob("*.yaml")}
        return sorted(names)

    def _folder(self, group: str) -> Path | None:
        """Where the options of a group lie; Hydra's groups and folders of other purposes are none of ours."""
        if group not in paths.groups():
            return None
        if self._root.name == "recipes":
            return self._root if group == "recipe" else None
        return self._root / group

    def _file(self, config_path: str) -> Path | None:
        group, _, name = self._normalize_file_name(config_path).strip("/").partition("/")
        folder = self._folder(group)
        return None if folder is None or not name or "/" in name else folder / name


class SearchPath(SearchPathPlugin):
    """Put the user's own folders before the shipped ones."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add `./recipes`, the shipped recipes, `./conf`, and at the end the options of plugins."""
        for folder in paths.user_folders("conf"):
            search_path.prepend(provider="your ./conf", path=f"checked://{folder}")
        search_path.append(provider="recipes", path=f"checked://{paths.RECIPES}")
        for folder in paths.user_folders("recipes"):
            search_path.prepend(provider="your ./recipes", path=f"checked://{folder}")
        search_path.append(provider="plugins", path=plugin_source.PATH)
