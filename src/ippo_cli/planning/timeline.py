"""The time line of an iteration: phases in their order on their devices, as a text chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ippo_cli.config.placement import format_ranks
from ippo_cli.config.text import shorten_name
from ippo_cli.planning.phase_times import Phase, Stage

CYCLES = 4  # scheduled iterations; the last ones repeat each other
NAME_WIDTH, DEVICES_WIDTH, BAR_WIDTH = 20, 18, 40


@dataclass(frozen=True, slots=True)
class Bar:
    """A phase of an iteration, in seconds after its begin."""

    phase: Phase
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """An iteration among equal ones."""

    bars: tuple[Bar, ...]
    seconds: float
    busy: Mapping[frozenset[int], float]  # fraction of the time, by devices that run the same phases


def schedule_phases(phases: Sequence[Phase], ahead: int = 0) -> Timeline:
    """The time line of repeated iterations. A phase begins when the earlier stages have ended and its devices are free.

    Passes that score rows follow each other, since all ranks exchange rows before and after each of them. `ahead`: a
    rollout uses weights that are older by so many updates, so that it can overlap with training.
    """
    by_stage = {stage: [phase for phase in phases if phase.stage is stage] for stage in Stage}
    free: dict[int, float] = {}
    bars: list[Bar] = []

    def run(phase: Phase, ready: float) -> float:
        start = max(ready, max((free.get(device, 0.0) for device in phase.devices), default=0.0))
        end = start + phase.seconds
        free.update(dict.fromkeys(phase.devices, end))
        bars.append(Bar(phase, start, end))
        return end

    def collect(ready: float) -> float:
        return max([ready, *(run(phase, ready) for phase in by_stage[Stage.rollout])])

    ends = [0.0]  # of iterations; the first: the begin
    collected = collect(0.0)
    for iteration in range(CYCLES):
        scored = max(collected, ends[iteration])
        if ahead:  # from the weights that the previous iteration has sent
            collected = collect(ends[iteration])
        for phase in by_stage[Stage.scoring]:
            scored = run(phase, scored)
        trained = max([scored, *(run(phase, scored) for phase in by_stage[Stage.update])])
        sent = [run(phase, trained) for phase in by_stage[Stage.transfer]]
        ends.append(max([trained, *sent]))
        if not ahead:
            collected = collect(ends[-1])
    begin, end = ends[-2:]
    seconds = end - begin
    busy: dict[int, float] = {}
    users: dict[int, tuple[int, ...]] = {}
    for number, phase in enumerate(phases):
        for device in phase.devices:
            busy[device] = busy.get(device, 0.0) + phase.seconds
            users[device] = (*users.get(device, ()), number)
    groups: dict[tuple[int, ...], list[int]] = {}
    for device in sorted(users):
        groups.setdefault(users[device], []).append(device)
    return Timeline(
        bars=tuple(Bar(bar.phase, bar.start - begin, bar.end - begin) for bar in bars if begin <= bar.start < end),
        seconds=seconds,
        busy={frozenset(group): busy[group[0]] / seconds for group in groups.values()},
    )


def format_chart(timeline: Timeline, ranks: int, servers: Sequence[int]) -> list[str]:
    """One line for each phase: name, devices, seconds, and a bar. `servers`: their devices on each machine."""
    lines = []
    for bar in sorted(timeline.bars, key=lambda bar: (bar.phase.stage.value, bar.start)):
        first = int(BAR_WIDTH * bar.start / timeline.seconds)
        last = min(max(first + 1, round(BAR_WIDTH * bar.end / timeline.seconds)), BAR_WIDTH)
        chart = " " * first + "#" * (last - first)
        name = shorten_name(bar.phase.name, NAME_WIDTH)
        where = shorten_name(format_devices(bar.phase.devices, ranks, servers), DEVICES_WIDTH)
        seconds = format_seconds(bar.phase.seconds)
        lines.append(f"  {name:<{NAME_WIDTH}} {where:<{DEVICES_WIDTH}} {seconds:>9}  |{chart:<{BAR_WIDTH}}|")
    return lines


def format_devices(devices: frozenset[int], ranks: int, servers: Sequence[int]) -> str:
    """Ranks, or the devices of servers: `ranks 0-5`, `servers 6-7`, `0-5, servers 6-7`."""
    own = sorted(device for device in devices if device < ranks)
    numbers = format_ranks(servers)
    if not own:
        return f"servers {numbers}"
    text = f"{format_ranks(own)}"
    return f"{text}, servers {numbers}" if len(own) < len(devices) else f"rank{'s' * (len(own) > 1)} {text}"


def format_seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
