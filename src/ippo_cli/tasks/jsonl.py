"""Load examples from JSON lines, CSV or Parquet files, a function, or a hub dataset with `datasets`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ippo_cli.config.errors import ConfigError, PreflightError, combine_errors
from ippo_cli.config.schema import DataConfig
from ippo_cli.tasks.json_types import PlainTable
from ippo_cli.tasks.messages import is_messages
from ippo_cli.tasks.rows import ExampleRows, JoinedRows, RowPreparation, identity, take_rows
from ippo_cli.tasks.sources import error_reason, load_table
from ippo_cli.tasks.templates import (
    OBSERVATION,
    is_conversation_field,
    render_template,
    template_fields,
    unknown_fields_error,
)
from ippo_cli.types import Example
from ippo_cli.user_code.templates import NullField, is_jinja, is_missing


def jsonl_examples(config: DataConfig, seed: int) -> tuple[Sequence[Example], Sequence[Example]]:
    """Return training and held-out rows in file order; the example schedule shuffles them."""
    if config.eval_share is None:
        train, held_out = _load_part(config, "train"), _load_part(config, "eval")
        _check_fields(config, {"train": train, "eval": held_out})
        return train, held_out
    rows, trained, places = _split_train_eval(config, seed)
    train = _limit_rows(rows, trained, config.train_size)
    _check_empty_sources("train", config, train)
    return train, _limit_rows(rows.without_weights(), places, config.eval_size)


def held_out_rows(config: DataConfig, seed: int = 0) -> Sequence[Example]:
    """Return only the held-out rows."""
    if config.eval_share is None:
        rows = _load_part(config, "eval")
        _check_fields(config, {"eval": rows})
        return rows
    rows, _, held_out = _split_train_eval(config, seed)
    return _limit_rows(rows.without_weights(), held_out, config.eval_size)


def _split_train_eval(config: DataConfig, seed: int) -> tuple[JoinedRows, list[int], list[int]]:
    """Return the rows of `task.train` and a seeded random split into training and held-out indices."""
    rows = _load_part(config, "train", whole=True)
    _check_fields(config, {"train": rows})
    if not isinstance(rows, JoinedRows):
        rows = JoinedRows([ExampleRows(rows, identity, range(len(rows)))])
    count = round(len(rows) * (config.eval_share or 0.0))
    if not 0 < count < len(rows):
        raise PreflightError(
            f"task.eval_share={config.eval_share} of {len(rows)} rows leaves one of the two parts empty"
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(rows), generator=generator).tolist()
    return rows, sorted(order[count:]), sorted(order[:count])


def _limit_rows(rows: JoinedRows, places: list[int], size: int | None) -> JoinedRows:
    return rows.select(places if size is None else places[:size])


def _load_part(config: DataConfig, part: str, *, whole: bool = False) -> Sequence[Example]:
    """Return the rows of `task.train` or `task.eval`; `whole` ignores the size limit."""
    key, source = f"task.{part}", getattr(config, part)
    preparation = RowPreparation(config=config)
    rows = _read_sources(config, part, preparation)
    size = None if whole else getattr(config, f"{part}_size")
    if size is not None:
        rows = take_rows(rows, range(min(size, len(rows))))
    if not len(rows):
        dropped = [str(counts) for counts in preparation.counts if any(counts.dropped.values())]
        raise PreflightError(f"{key}={source} has no rows" + (f" left ({'; '.join(dropped)})" if dropped else ""))
    _check_empty_sources(part, config, rows)
    return rows


def _check_empty_sources(part: str, config: DataConfig, rows: Any) -> None:
    """Raise `PreflightError` for a source with a weight and without rows."""
    if isinstance(rows, JoinedRows) and rows.weights and (empty := [p for p, n in enumerate(rows.sizes) if not n]):
        raise PreflightError(
            f"task.{part}={getattr(config, part)}: source {empty[0] + 1} has a weight, but no rows are left"
        )


def _read_sources(config: DataConfig, part: str, preparation: RowPreparation) -> Any:
    """Return the rows of all sources; as one `datasets` table if no setting changes the rows."""
    from datasets import concatenate_datasets

    key, source = f"task.{part}", getattr(config, part)
    split = config.train_split if part == "train" else config.eval_split
    if source is None:
        raise ConfigError(f"{key}=null", "names no data", f"set {key} to a .jsonl or .parquet file or a hub dataset id")
    sources = list(map(str, source)) if isinstance(source, list) else [str(source)]
    first = getattr(config, f"{part}_size") if config.streaming else None
    tables = [load_table(key, name, config.data_config, split, first=first) for name in sources]
    if preparation.changes_rows:
        weights = config.weights if part == "train" else None
        preparation.check_columns(dict(zip(sources, tables, strict=True)))
        parts = [preparation.prepare_table(table, name) for table, name in zip(tables, sources, strict=True)]
        return JoinedRows(parts, weights, preparation.counts)
    if any(isinstance(table, PlainTable) for table in tables):
        return JoinedRows([ExampleRows(table, identity, range(len(table))) for table in tables])
    try:
        return tables[0] if len(tables) == 1 else concatenate_datasets(tables)
    except ValueError as error:
        raise PreflightError(f"{key}={source}: these sources cannot be concatenated ({error_reason(error)})") from error


def _check_fields(config: DataConfig, parts: Mapping[str, Sequence[Example]]) -> None:
    """Raise one error for all fields of templates that the rows of `task.train` and `task.eval` lack.

    `ConfigError` if no row of a part has some field, `PreflightError` if some rows have no value. A Jinja template may
    test for null: rows with nulls are rendered to check that.
    """
    unknown: dict[str, ConfigError] = {}
    lines: list[str] = []
    for part, rows in parts.items():
        source = f"task.{part}={getattr(config, part)}"
        setting_by_field: dict[str, str] = {}
        for setting, template in _templates(config):
            fields = template_fields(template, setting)
            if is_jinja(template):
                _check_rendered_nulls(source, rows, template, setting)
            elif absent := _absent_fields(rows, fields):
                unknown.setdefault(setting, unknown_fields_error(absent, rows[0], setting, template))
            for field in () if is_jinja(template) else sorted(fields):
                setting_by_field.setdefault(field, setting)
        if isinstance(rows, JoinedRows) and not unknown:
            _check_lists(rows, config)
        nulls = [
            f"{count} of {len(rows)} rows have no {field!r}, which {setting_by_field[field]} names"
            for field, count in ({} if unknown else _count_nulls(rows, setting_by_field)).items()
        ]
        lines += [f"{source}: {', '.join(nulls)}"] if nulls else []
    if unknown:
        raise combine_errors(list(unknown.values()))
    if lines:
        lines[-1] += "; remove these rows from the file, or exclude them with task.filter"
        raise PreflightError("\n".join(lines))


def _templates(config: DataConfig) -> Iterator[tuple[str, str]]:
    """Key and text of every template that reads examples."""
    for name, agent in config.agents.items():
        for leaf in ("template", "turn_template", "answer"):
            if template := getattr(agent, leaf):
                yield f"task.agents.{name}.{leaf}", template


def _absent_fields(rows: Any, fields: Collection[str]) -> list[str]:
    """The fields of examples that no row has."""
    wanted = [field for field in sorted(fields) if field != OBSERVATION and not is_conversation_field(field)]
    if not isinstance(rows, JoinedRows):
        return [field for field in wanted if field not in rows.column_names]
    absent = [field for field in wanted if field not in rows[0]]
    for row in rows if absent else ():
        absent = [field for field in absent if field not in row]
        if not absent:
            break
    return absent


def _check_lists(rows: JoinedRows, config: DataConfig) -> None:
    """Raise `ConfigError` if a plain template writes a list or an object (typed tables show this in the first row)."""
    plain = {setting: text for setting, text in _templates(config) if not is_jinja(text) and not is_messages(text)}
    fields = {setting: template_fields(text, setting) for setting, text in plain.items()}
    for row in rows if any(fields.values()) else ():
        for setting, named in fields.items():
            for field in named:
                if isinstance(row.get(field), list | dict | bytes):
                    render_template(f"{{{field}}}", row, setting)


def _check_rendered_nulls(source: str, rows: Any, template: str, setting: str) -> None:
    fields = template_fields(template, setting)
    lacking = list(_count_nulls(rows, fields))
    conversation = {word: "" for word in fields if word == OBSERVATION or is_conversation_field(word)}
    for place, row in enumerate(rows if lacking else ()):
        if any(is_missing(row.get(field)) for field in lacking):
            try:
                render_template(
                    template, row, setting, {word: text for word, text in conversation.items() if word not in row}
                )
            except NullField as error:
                raise PreflightError(
                    f"{source}: row {place + 1} of {len(rows)}: {error}; or exclude such rows with task.filter"
                ) from error
            except ConfigError:  # conversation fields are not known yet
                continue


def _count_nulls(rows: Any, fields: Iterable[str]) -> dict[str, int]:
    """Return the number of rows without a value, for fields that some rows have and others lack."""
    if not isinstance(rows, JoinedRows):
        columns = [field for field in fields if field in rows.column_names]
        counts = {field: _count_missing(rows.data.column(field)) for field in columns}
    else:
        present = dict.fromkeys(fields, 0)
        for row in rows if present else ():
            for field in present:
                present[field] += not is_missing(row.get(field))
        counts = {field: len(rows) - count for field, count in present.items() if count}
    return {field: count for field, count in counts.items() if count}


def _count_missing(column: Any) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    nans = pc.sum(pc.is_nan(column)).as_py() if pa.types.is_floating(column.type) else 0  # pyright: ignore
    return column.null_count + (nans or 0)
