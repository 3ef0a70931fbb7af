"""Ranks, groups of ranks that train the same rows, and collectives.

Every function works without a process group, as with a world size of 1: sums are the tensor itself, gathers have one
entry. Unless noted, functions are collective: every rank calls them, in the same order.

A model-parallel group is `group_size` consecutive ranks. Its ranks train the same rows, each with a part of the work;
otherwise (rollout, scoring, evaluation) each rank has its own rows. Without model parallelism each rank is a group.

"All ranks" are those of the current group: the world, or inside `RankGroup.activate` some ranks, numbered from 0.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from ippo_cli.config.errors import UNEXPECTED, IppoError, OtherRankFailed, PreemptionRequested
from ippo_cli.engine import rank_group as groups
from ippo_cli.engine.launchers import LISTENING_SOCKET, Ranks, detect_ranks, rendezvous_address
from ippo_cli.engine.rank_group import RankGroup, current_group, world_group

T = TypeVar("T")
SCATTER_CHUNK = 1 << 20  # elements, of all ranks together


_stores: dict[tuple[Any, ...], Any] = {}  # rendezvous stores by address, kept so that a second training can reuse them
_store: Any = None  # of the current training
_trainings = 0  # prefixes keys, so that trainings that share a store have separate keys
_timeout = timedelta(seconds=1800)


def init(*, device: str, timeout_s: float, ranks_per_group: int = 1) -> Ranks:
    """Start the process group, with one rank if there is no launcher, and return this process's ranks.

    `device` is `cpu` or `cuda`; on `cuda` this also selects the GPU given by `rank_device`. A world size of 1 opens no
    port, so any number of single processes can run on one machine. After `shutdown` it may be called again.
    `ranks_per_group`: size of the model-parallel groups; it divides the number of ranks.
    """
    global _store, _timeout, _trainings
    if dist.is_initialized():
        raise RuntimeError("the process group is already running; call shutdown() first")
    ranks = detect_ranks(os.environ)
    _timeout = timedelta(seconds=timeout_s)
    _trainings += 1
    # Saving a model may import DeepSpeed through another library, and DeepSpeed selects its device on import.
    os.environ.setdefault("DS_ACCELERATOR", device)
    if device == "cuda":
        torch.cuda.set_device(rank_device(device, ranks))
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    _store = distributed_c10d.PrefixStore(f"{restarts}.{_trainings}", _open_store(ranks))
    dist.init_process_group(
        backend="cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        store=_store,
        rank=ranks.rank,
        world_size=ranks.world_size,
        timeout=_timeout,
    )
    groups.create_world(ranks.rank, ranks.world_size, ranks_per_group, _timeout)
    return ranks


def _open_store(ranks: Ranks) -> Any:
    """The rendezvous store; a port is opened once per process, since it cannot be reused immediately."""
    if ranks.world_size == 1:
        return dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    address, port = rendezvous_address(os.environ)
    key = (address, port, ranks.rank, ranks.world_size)
    if key not in _stores:
        # torchrun already listens on this port, and sets this variable.
        listens = ranks.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        _stores[key] = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            address, port, ranks.world_size, listens, timeout=_timeout, master_listen_fd=_take_listening_socket()
        )
    return _stores[key]


def _take_listening_socket() -> int | None:
    """The file descriptor of the listening socket that the parent passed to this process; not inherited further."""
    descriptor = os.environ.pop(LISTENING_SOCKET, None)
    if descriptor is None:
        return None
    os.set_inheritable(int(descriptor), False)
    return int(descriptor)


def shutdown() -> None:
    """End the process group, if there is one."""
    global _store
    _store = None
    groups.remove_groups()
    if dist.is_initialized():
        dist.destroy_process_group()


def was_initialized() -> bool:
    """Whether a process group was ever initialised in this process."""
    return _trainings > 0


def collective_timeout() -> timedelta:
    """The timeout of collectives, as given to `init`."""
    return _timeout


def rank_device(device: str, ranks: Ranks) -> torch.device:
    """The device of a rank. If a launcher shows each rank only its own GPU, that GPU has number 0."""
    if device == "cuda":
        return torch.device("cuda", ranks.local_rank % torch.cuda.device_count())
    return torch.device(device)


def rank_group(ranks: Sequence[int]) -> RankGroup:
    """The group of these ranks of the world. The first call creates it: every rank calls it, in the same order."""
    return groups.rank_group(ranks, _timeout)


def rank() -> int:
    """This process's number among the ranks of the current group."""
    return current_group().rank


def world_size() -> int:
    """Number of ranks of the current group."""
    return current_group().size


def global_rank() -> int:
    """This process's number in the run, whatever group is active: names its files."""
    return world_group().rank


def group_size() -> int:
    """Ranks of each model-parallel group; 1 without model parallelism."""
    return current_group().parallel_size


def group_rank() -> int:
    """This rank's position within its model-parallel group."""
    return rank() % group_size()


def num_groups() -> int:
    """Number of model-parallel groups: the number of shares into which the rows of an update are split."""
    return world_size() // group_size()


def group_index() -> int:
    """The model-parallel group of this rank."""
    return rank() // group_size()


def is_main() -> bool:
    """Whether this is rank 0, which writes the shared files."""
    return rank() == 0


def barrier() -> None:
    """Wait for every rank."""
    if world_size() > 1:
        dist.barrier(group=_process_group())


def _process_group() -> Any:
    return current_group().process_group


def all_sum(tensor: Tensor) -> Tensor:
    """The sum over ranks, as a new tensor of the same shape, bitwise equal on every rank."""
    return _all_reduce(tensor, dist.ReduceOp.SUM)


def all_sum_groups(tensor: Tensor) -> Tensor:
    """The sum over model-parallel groups of a tensor that is equal on the ranks of a group: a total over rows."""
    return all_sum(tensor if group_rank() == 0 else torch.zeros_like(tensor))


def sum_over_group(tensor: Tensor) -> Tensor:
    """The sum over the ranks of this rank's model-parallel group, as a new tensor. Collective over the group."""
    result = tensor.detach().clone()
    if group_size() > 1:
        dist.all_reduce(result, group=current_group().parallel_group)
    return result


def exchange_over_group(parts: Tensor) -> Tensor:
    """Send `parts[r]` to rank `r` of the group and return the parts received, in rank order: `[group_size, ...]`.
    Collective over the group.
    """
    parts = parts.detach().contiguous()
    if group_size() == 1:
        return parts.clone()
    received = torch.empty_like(parts)
    # As bytes, since not every backend exchanges every dtype.
    dist.all_to_all_single(_as_bytes(received), _as_bytes(parts), group=current_group().parallel_group)
    return received


def all_max(tensor: Tensor) -> Tensor:
    """The elementwise maximum over ranks, as a new tensor."""
    return _all_reduce(tensor, dist.ReduceOp.MAX)


def _all_reduce(tensor: Tensor, op: Any) -> Tensor:
    result = tensor.detach().clone()
    if world_size() > 1:
        dist.all_reduce(result, op=op, group=_process_group())
    return result


def any_rank(flag: bool) -> bool:
    """Whether the flag is true on any rank, so that all ranks take the same branch."""
    # A CPU tensor: every group of `init` includes gloo.
    return bool(all_max(torch.tensor(int(flag))).item())


@contextmanager
def synchronize_errors(kinds: tuple[type[BaseException], ...] = (Exception, PreemptionRequested)) -> Iterator[None]:
    """Raise errors of one rank on all ranks at the end of the block: as `OtherRankFailed` on the other ranks.

    Inside, no rank may wait for a failed one; if this holds only for some errors, pass them as `kinds`, and other
    errors propagate unchanged. A `PreemptionRequested` is raised on all ranks as itself, and has priority over
    failures, which will recur.
    """
    own_error: BaseException | None = None
    try:
        yield
    except kinds as error:
        own_error = error
    level = 2 if isinstance(own_error, PreemptionRequested) else int(own_error is not None)
    try:
        highest = int(all_max(torch.tensor(level)).item())
    except RuntimeError:  # another rank has exited
        if own_error is not None:
            raise own_error from None
        raise
    if highest == 2:
        raise own_error if isinstance(own_error, PreemptionRequested) else PreemptionRequested
    if highest == 1:
        codes = gather_objects(
            None if own_error is None else own_error.exit_code if isinstance(own_error, IppoError) else UNEXPECTED
        )
        if own_error is not None:
            raise own_error
        first = next(number for number, code in enumerate(codes) if code is not None)
        raise OtherRankFailed(current_group().ranks[first], codes[first])


def lost_connection(error: BaseException) -> bool:
    """Whether an error only reports that another rank is unreachable."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo/transport" in str(error))


def collective_count() -> int:
    """Number of collectives of the process group so far: ranks with equal counts can continue with the same one."""
    if world_group().size == 1:
        return 0
    try:
        return distributed_c10d._get_default_group()._get_sequence_number_for_group()  # pyright: ignore[reportAttributeAccessIssue]
    except RuntimeError:  # not all backends count
        return 0


def exchange_exit_reports(report: str, patience_s: float) -> dict[int, str]:
    """Exchange the exit reports of all ranks, including this one's `report`, by rank. Call it once.

    Not collective, and it works with a broken process group: ranks that have exited, or do not report within
    `patience_s`, are missing. Without rank 0, which may host the store, all others may be missing.
    """
    size, own_rank = world_group().size, global_rank()
    by_rank = {own_rank: report}
    if size == 1:
        return by_rank
    try:
        _store.set(f"words/{own_rank}", report)
        deadline = time.monotonic() + patience_s
        while len(by_rank) < size and time.monotonic() < deadline:
            for other in set(range(size)) - by_rank.keys():
                if _store.check([f"words/{other}"]):
                    by_rank[other] = _store.get(f"words/{other}").decode()
            time.sleep(0.02)
        _store.add("read", 1)
        while own_rank == 0 and _store.add("read", 0) < len(by_rank) and time.monotonic() < deadline + 1.0:
            time.sleep(0.02)  # the store ends with rank 0
    except RuntimeError:
        pass
    return dict(sorted(by_rank.items()))


def set_flag(name: str) -> bool:
    """Set a flag that `flag_is_set` reads on every rank; return False if it failed. Does not block; thread-safe."""
    store = _store
    try:
        if store is not None:
            store.set(f"announced/{name}", "")
    except RuntimeError:  # the rank that hosts the store has exited
        return False
    return store is not None


def flag_is_set(name: str) -> bool:
    """Whether a rank of this training has set the flag. Does not block; thread-safe."""
    store = _store
    try:
        return store is not None and bool(store.check([f"announced/{name}"]))
    except RuntimeError:
        return False


def add_to_counter(name: str, increment: int) -> int:
    """Add `increment` to a counter of all ranks of this training and return the total; 0 if the store is unreachable.
    Waits only for the rank that hosts the store; thread-safe.
    """
    store = _store
    try:
        return 0 if store is None else int(store.add(f"counted/{name}", increment))
    except RuntimeError:
        return 0


def local_row_slice(tensor: Tensor) -> slice:
    """The position of this rank's rows in the result of `all_gather_rows` for a tensor of as many rows. Collective."""
    first = sum(_row_counts(tensor)[: rank()])
    return slice(first, first + len(tensor))


def _row_counts(tensor: Tensor) -> list[int]:
    counts = torch.zeros(world_size(), dtype=torch.long, device=tensor.device)
    counts[rank()] = len(tensor)
    return all_sum(counts).tolist()


def all_gather_rows(tensor: Tensor) -> Tensor:
    """The rows of all ranks, `[n_r, ...] -> [sum of n_r, ...]`, in rank order; the n_r may differ, and be 0."""
    if world_size() == 1:
        return tensor.detach().clone()
    sizes = _row_counts(tensor)
    if max(sizes) == 0:
        return tensor.detach().clone()
    # Padded, since a gather needs equal shapes; as bytes, since not every backend gathers every dtype.
    padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))
    padded[: len(tensor)] = tensor.detach()
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather([_as_bytes(part) for part in parts], _as_bytes(padded), group=_process_group())
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def scatter(values: Tensor, into: Tensor, device: torch.device) -> None:
    """Write to each rank's `into [count]` its part of rank 0's `values [n]`, on any devices.

    Parts are in rank order; positions after the end are 0. Values of other ranks are ignored. `device` is that of the
    messages; values are cast and sent in chunks. Collective.
    """
    count = len(into)
    for start in range(0, count, max(SCATTER_CHUNK // world_size(), 1)):
        piece = into[start : start + max(SCATTER_CHUNK // world_size(), 1)]
        sent = torch.empty_like(piece, device=device) if piece.device != device else piece
        parts = None
        if is_main():
            firsts = [start + number * count for number in range(world_size())]
            parts = [_as_bytes(_pad_like(values[first : first + len(piece)], sent)) for first in firsts]
        dist.scatter(_as_bytes(sent), parts, src=current_group().ranks[0], group=_process_group())
        if sent is not piece:
            piece.copy_(sent)


def _pad_like(values: Tensor, like: Tensor) -> Tensor:
    """The values with the dtype, device and length of another tensor, zero-padded."""
    values = values.to(like)
    return values if len(values) == len(like) else torch.cat([values, values.new_zeros(len(like) - len(values))])


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def broadcast_object(obj: Any, src: int = 0) -> Any:
    """The object of rank `src`, on every rank (pickled; only between our own ranks)."""
    if world_size() == 1:
        return obj
    box = [obj]
    dist.broadcast_object_list(box, src=current_group().ranks[src], group=_process_group())
    return box[0]


def run_on_main(work: Callable[[], T]) -> T:
    """Run `work` on rank 0 and return its result on every rank. An exception is raised on every rank."""
    if world_size() == 1:
        return work()
    result: T | None = None
    error: Exception | None = None
    if is_main():
        try:
            result = work()
        except Exception as raised:  # after the other ranks are notified
            error = raised
    is_known = error is None or isinstance(error, IppoError)
    known = error if is_known else OtherRankFailed(current_group().ranks[0], UNEXPECTED)
    result, main_error = broadcast_object((result, known))
    if error is not None:
        raise error
    if main_error is not None:
        main_error.reported = True
        raise main_error
    return result  # type: ignore[return-value]


def gather_objects(obj: Any) -> list[Any]:
    """The objects of all ranks, in rank order, on every rank."""
    if world_size() == 1:
        return [obj]
    boxes: list[Any] = [None] * world_size()
    dist.all_gather_object(boxes, obj, group=_process_group())
    return boxes


def exchange_objects(parts: Sequence[Any]) -> list[Any]:
    """Send `parts[r]` to rank `r`; return the parts received, in rank order (pickled; only between our own ranks)."""
    own = rank()
    if world_size() == 1:
        return list(parts)
    # Not `all_gather_object`: parts may be large, and each is for one rank only.
    sent = [b"" if number == own else pickle.dumps(part) for number, part in enumerate(parts)]
    sizes = gather_objects([len(part) for part in sent])
    arriving = [row[own] for row in sizes]
    received = torch.empty(sum(arriving), dtype=torch.uint8)
    dist.all_to_all_single(
        received,
        torch.frombuffer(bytearray(b"".join(sent)), dtype=torch.uint8) if any(sent) else torch.empty(0).byte(),
        arriving,
        [len(part) for part in sent],
        group=_process_group(),
    )
    pieces = received.split(arriving)
    return [
        parts[number] if number == own else pickle.loads(piece.numpy().tobytes()) for number, piece in enumerate(pieces)
    ]


def masked_moments(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the masked entries of all ranks, with Bessel's correction, as float64 scalars.

    Two passes in float64, so that a large mean does not cancel the variance. No entry: (0, 0); one: (itself, 0).
    Entries off the mask may have any value, NaN included.
    """
    keep = mask.to(torch.bool)
    values = x.detach().double().masked_fill(~keep, 0.0)
    count, total = all_sum(torch.stack([keep.sum().double(), values.sum()]))
    mean = total / count.clamp(min=1)
    squares = all_sum((values - mean).square().masked_fill(~keep, 0.0).sum())
    variance = torch.where(count > 1, squares / (count - 1).clamp(min=1), torch.zeros_like(squares))
    return mean, variance


def claim_log_once(message: str) -> bool:
    """Whether this rank is the first to log a message that all ranks would log. Does not block."""
    if _store is None:
        return True
    try:
        return int(_store.add(f"logged/{hashlib.sha256(message.encode()).hexdigest()}", 1)) == 1
    except RuntimeError:  # the rank that hosts the store has exited: a repeated message is better than none
        return True


def check_same_on_ranks(value: str, name: str) -> None:
    """Raise RuntimeError on every rank, with the ranks on which `value` differs from rank 0's."""
    values = gather_objects(value)
    odd = [index for index, other in enumerate(values) if other != values[0]]
    if odd:
        listing = "; ".join(f"rank {index}: {values[index]}" for index in [0, *odd])
        raise RuntimeError(f"{name} differs between ranks {[0, *odd]}; all ranks must agree ({listing})")
