"""Options of one's own: folders, and single YAML files, that Hydra looks for options in besides `conf/`."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf

SEARCH_PATH = "hydra.searchpath="
FILE_SCHEME = "option"


class OptionFile(ConfigSource):
    """One file as one option of one group: `option://task=/home/me/mine.yaml` is what `task=mine` chooses."""

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
        text = self.file.read_text(encoding="utf-8")
        return ConfigResult(
            config=OmegaConf.load(io.StringIO(text)),
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


def register_option_files() -> None:
    """Make Hydra understand single files on its search path."""
    Plugins.instance().register(OptionFile)


def entry(place: Path, group: str | None = None) -> str:
    """A place as it stands in the search path: a folder of groups, or the file of one option of a group."""
    return f"{FILE_SCHEME}://{group}={place}" if group else str(place)


def entries(overrides: Iterable[str]) -> list[str]:
    """What the overrides add to the search path, each once."""
    parser = OverridesParser.create()
    added = [parser.parse_override(text).value() for text in overrides if text.startswith(SEARCH_PATH)]
    return list(dict.fromkeys(str(place) for places in added if isinstance(places, list) for place in places))


def own_files(overrides: Sequence[str]) -> list[tuple[str, Path]]:
    """Group and file of every option that the overrides add."""
    files: list[tuple[str, Path]] = []
    for place in entries(overrides):
        if place.startswith(f"{FILE_SCHEME}://"):
            group, _, file = place.removeprefix(f"{FILE_SCHEME}://").partition("=")
            files.append((group, Path(file)))
        else:
            files += options_below(Path(place.removeprefix("file://")))
    return files


def options_below(root: Path) -> list[tuple[str, Path]]:
    """Group and file of every option in a folder of groups."""
    files = ((str(file.parent.relative_to(root)), file) for file in sorted(root.rglob("*.yaml")))
    return [(group, file) for group, file in files if group != "."]
