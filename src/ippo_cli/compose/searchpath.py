"""User-defined options: folders and single YAML files on Hydra's search path, besides `conf/`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf

from ippo_cli.compose.file_interpolations import check_interpolations
from ippo_cli.compose.path_keys import read_option
from ippo_cli.compose.yaml_source import YamlSource, parse_tree, read_source_text

SEARCH_PATH = "hydra.searchpath="
FILE_SCHEME = "option"
SCHEMA_ENTRIES = ("/schema/", "schema/")
FLOAT = re.compile(
    r"""[-+]?(?:[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)? | [0-9]+[eE][-+]?[0-9]+ | \.[0-9]+(?:[eE][-+]?[0-9]+)?)$
    | [-+]?\.(?:inf|Inf|INF)$ | \.(?:nan|NaN|NAN)$""",
    re.VERBOSE,
)
PACKAGE = Path(__file__).resolve().parents[1]
BUILTIN_OPTIONS = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parents[1] / "conf"


class OptionFile(ConfigSource):
    """A single file as an option of a group: `option://task=/home/me/mine.yaml` is chosen by `task=mine`."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider=provider, path=path)
        self.group, _, file = self.path.partition("=")
        self.file = Path(file)

    @staticmethod
    def scheme() -> str:
        return FILE_SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        if not self.is_config(config_path):
            raise ConfigLoadError(f"Config not found : {config_path}")
        text = _read_valid_yaml(self.file, self.group)
        return ConfigResult(
            config=create_option(read_option(text, self.group, self.file.resolve().parent)),
            path=self.full_path(),
            provider=self.provider,
            header=self._get_header_dict(text[:512]),
        )

    def available(self) -> bool:
        return self.file.is_file()

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") in ("", self.group)

    def is_config(self, config_path: str) -> bool:
        return config_path.removesuffix(".yaml") == f"{self.group}/{self.file.stem}" and self.available()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        inside = config_path.strip("/") == self.group
        if results_filter is not (ObjectType.CONFIG if inside else ObjectType.GROUP) and results_filter is not None:
            return []
        return [self.file.stem] if inside else [self.group] if self.is_group(config_path) else []


class OptionFolder(FileConfigSource):
    """A folder of groups. In user files, paths are relative to the file, and text may contain `${`."""

    def load_config(self, config_path: str) -> ConfigResult:
        file = Path(self.path, self._normalize_file_name(config_path)).resolve()
        if not file.is_file():
            return super().load_config(config_path)
        group = str(Path(config_path).parent)
        if file.is_relative_to(BUILTIN_OPTIONS.resolve()):
            text = file.read_text(encoding="utf-8")
            option = load_builtin_option(text)
        else:
            text = _read_valid_yaml(file, group)
            option = read_option(text, group, file.parent)
        return ConfigResult(
            config=create_option(option),
            path=f"{self.scheme()}://{self.path}",
            provider=self.provider,
            header=self._get_header_dict(text[:512]),
        )


class OptionPackage(ImportlibResourcesConfigSource):
    """A folder of groups in an installed package, `hydra.searchpath=[pkg://my_package.conf]`."""

    def load_config(self, config_path: str) -> ConfigResult:
        is_user_option = self.provider.startswith(SEARCH_PATH.rstrip("="))  # others are Hydra's and its plugins'
        file = Path(str(resources.files(self.path).joinpath(self._normalize_file_name(config_path))))
        if not is_user_option or not file.is_file():
            return super().load_config(config_path)
        _read_valid_yaml(file, str(Path(config_path).parent))
        result = super().load_config(config_path)
        result.config = create_option(OmegaConf.to_container(result.config, resolve=False))
        return result


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _FastLoader(_Loader):
    """Reads YAML as OmegaConf does, `1e-6` as a number and dates as text, with the parser in C: a tenth of the time."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":float", ":timestamp"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_FastLoader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))


def load_builtin_option(text: str) -> Any:
    """The values of a file of `conf/`."""
    return yaml.load(text, Loader=_FastLoader) or {}


def create_option(values: Any) -> Any:
    """The values of a file for Hydra. Its groups accept any key: pydantic refuses unknown ones, and has a remedy.

    Entries `/schema/NAME` of defaults lists were needed by earlier versions.
    """
    if not isinstance(values, dict):
        return OmegaConf.create(values)
    if isinstance(listed := values.get("defaults"), list):
        values = values | {"defaults": [entry for entry in listed if not str(entry).startswith(SCHEMA_ENTRIES)]}
    option = OmegaConf.create(values)
    below = [part for name, part in option.items_ex(resolve=False) if name != "hydra"]
    for node in (option, *below, *iter_agents(option), *(agent for part in below for agent in iter_agents(part))):
        if isinstance(node, DictConfig):
            OmegaConf.set_struct(node, False)
    return option


def iter_agents(task: Any) -> Iterator[Any]:
    """The agents of a task."""
    agents = task._get_node("agents") if isinstance(task, DictConfig) and not task._is_none() else None
    if isinstance(agents, DictConfig):
        yield from (agent for _, agent in agents.items_ex(resolve=False))


def is_of_file(node: DictConfig) -> bool:
    """Whether a file has a mapping, such as an agent; overrides make others."""
    return node._metadata.flags is not None and node._metadata.flags.get("struct") is False


def _read_valid_yaml(file: Path, group: str) -> str:
    """The text of a user file. Raises `ConfigError` for invalid YAML and for calls of resolvers that files must not
    call, before Hydra parses it.
    """
    text = read_source_text(file)
    source = YamlSource(file, group, text)
    check_interpolations(source, parse_tree(source))
    return text


# Launchers send the registry to jobs by pickle. There Hydra registers its own class for the scheme a second time, and
# raises an error unless the registered class has the same name.
OptionFolder.__name__ = FileConfigSource.__name__
OptionPackage.__name__ = ImportlibResourcesConfigSource.__name__


def register_option_files() -> None:
    """Register `OptionFile`, `OptionFolder` and `OptionPackage` as Hydra's config sources."""
    Plugins.instance().register(OptionFile)
    SourcesRegistry.instance().types["file"] = OptionFolder
    SourcesRegistry.instance().types["pkg"] = OptionPackage


def search_path_entry(place: Path, group: str | None = None) -> str:
    """Format an entry of the search path: a folder of groups, or the file of an option of `group`."""
    return f"{FILE_SCHEME}://{group}={place}" if group else str(place)


def search_path_entries(overrides: Iterable[str]) -> list[str]:
    """Entries that the overrides add to the search path, without duplicates."""
    parser = OverridesParser.create()
    added = [parser.parse_override(text).value() for text in overrides if text.startswith(SEARCH_PATH)]
    return list(dict.fromkeys(str(place) for places in added if isinstance(places, list) for place in places))


def user_option_files(overrides: Sequence[str]) -> list[tuple[str, Path]]:
    """Group and file of every user option that the overrides add."""
    files: list[tuple[str, Path]] = []
    for place in search_path_entries(overrides):
        if place.startswith(f"{FILE_SCHEME}://"):
            group, _, file = place.removeprefix(f"{FILE_SCHEME}://").partition("=")
            files.append((group, Path(file)))
        else:
            files += list_options(Path(place.removeprefix("file://")))
    return files


def list_options(root: Path) -> list[tuple[str, Path]]:
    """Group and file of every option in a folder of groups."""
    files = ((str(file.parent.relative_to(root)), file) for file in sorted(root.rglob("*.yaml")))
    return [(group, file) for group, file in files if group != "."]
