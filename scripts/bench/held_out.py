"""Draw held-out curves of runs as one small SVG picture: over training responses, and over minutes of training.

    python scripts/bench/held_out.py docs/pictures/smollm2.svg 'grpo=outputs/.../RUN' 'ppo=...' --metric sampled/right

Prints the same numbers as a Markdown table. Minutes count iterations, without evaluations and checkpoints.
`--beside kl/reference` draws that metric of the training buffers over responses, instead of the curve over minutes.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import yaml
from curves import pyplot  # with the settings of curves.py
from svg_files import write_svg


@dataclass(frozen=True, slots=True)
class Curve:
    """One run: values of the held-out metric with their training responses and minutes."""

    label: str
    responses: list[int]
    minutes: list[float]
    values: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("runs", nargs="+", help="LABEL=FOLDER")
    parser.add_argument("--metric", nargs="+", default=["sampled/score"], help="one or several; one line each")
    parser.add_argument("--beside", help="draw this metric of the training buffers instead of minutes")
    given = parser.parse_args()
    runs = [text.rsplit("=", 1) for text in given.runs]
    several = len(given.metric) > 1
    curves = [
        _read(f"{label} {metric}" if several else label, folder, f"eval/{metric}")
        for label, folder in runs
        for metric in given.metric
    ]
    beside = [_read(label, folder, given.beside) for label, folder in runs] if given.beside else None
    _draw(curves, "" if several else given.metric[0], given.picture, beside, given.beside)
    for curve in curves:
        points = zip(curve.responses, curve.minutes, curve.values, strict=True)
        cells = " | ".join(f"{value:.2f} ({responses}, {minutes:.0f} min)" for responses, minutes, value in points)
        print(f"| {curve.label} | {cells} |")


def _read(label: str, folder: str, metric: str) -> Curve:
    buffer_size = yaml.safe_load((Path(folder) / "config.yaml").read_text())["rollout"]["buffer_size"]
    curve = Curve(label, [], [], [])
    seconds = 0.0
    for line in (Path(folder) / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        seconds += row.get("time/iteration", 0.0)
        if metric in row:
            curve.responses.append(row["iteration"] * buffer_size)
            curve.minutes.append(seconds / 60)
            curve.values.append(row[metric])
    return curve


def _draw(curves: list[Curve], metric: str, picture: Path, beside: list[Curve] | None, training: str | None) -> None:
    figure, axes = pyplot.subplots(1, 2, figsize=(7, 2.4), sharey=beside is None, layout="constrained")
    for curve in curves:
        axes[0].plot(curve.responses, curve.values, marker=".", label=curve.label)
        if beside is None:
            axes[1].plot(curve.minutes, curve.values, marker=".")
    for curve in beside or []:
        axes[1].plot(curve.responses, curve.values)
    axes[0].set(xlabel="responses", ylabel=f"held-out {metric}".strip())
    if beside is None:
        axes[1].set(xlabel="minutes of training")
    else:
        axes[1].set(xlabel="responses", ylabel=training)
    axes[0].legend(frameon=False)
    write_svg(figure, picture)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
