"""The fused memory scan as one torch operation."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...gates import Gates
from ...look import Look
from ..trust import INTERPRETED
from . import sums
from .decode import decode, short
from .habits import Habit, Repeatable, accustom, again
from .launching import in_line, known_of, layout_of, once, processors_of, room_of, same
from .operation import Operation, watched
from .products import PRECISIONS
from .repeating import RECORDING, Recording, repeated
from .scan_launches import backward, forward
from .scan_problem import BARE, INPUTS, TENSORS, Inputs, Problem, Shape, results, rooms_for
from .scan_settings import settings_for
from .tuned import tuned

MOST = 256  # features, values
PLAIN = Look()


def problem(known: dict, x: Inputs) -> Problem:
    rows, length, heads, width = x.queries.shape
    features = Look(matrix=x.matrix, map=x.map, nu=x.nu).features(width)
    shape = Shape(rows, length, heads, width, features, x.values.shape[-1], x.counts)
    keep = "all" if x.log_keep is None else "heads" if x.log_keep.ndim == 3 else "features"
    look = (x.map, x.scale, x.nu, x.floor, x.epsilon, x.factor, x.queries.dtype != torch.bfloat16)
    settings = settings_for(
        rows * heads,
        length,
        shape.features,
        shape.values,
        keep,
        x.erase is not None,
        x.map,
        x.queries.dtype,
        processors_of(x.queries.device),
        room_of(x.queries.device),
    )
    if x.counts and x.erase is not None:  # what a part does to a page that is erased it does not do to the sum of keys
        settings = replace(settings, parts=1)
    settings = tuned("memory_scan", x, settings)
    return Problem(shape, look, keep, x.limit, x.shared, settings, PRECISIONS[x.queries.dtype], known)


def known_about(tensors: Sequence[Tensor | None], about: Sequence) -> dict:
    """What was found out for tensors of a layout."""
    return known_of((layout_of(tensors), about))


def known_problem(x: Inputs, *others: Tensor | None) -> Problem:
    known = known_about((*x[:TENSORS], *others), x[TENSORS:])
    return once(known, "problem", lambda: problem(known, x))


def scan_op(*inputs) -> Sequence[Tensor | None]:
    """Reads, the last page, what was read of the sum of keys and, if asked to, all that backward needs."""
    tensors, about = inputs[:TENSORS], inputs[TENSORS:]

    def work(*given):
        x = Inputs(*given, *about)
        return forward(known_problem(x), x)

    made = repeated(known_about(tensors, about), tensors, work)
    return handed_on(made, about[-1])


def scan_back_op(grads, kept, *inputs) -> Sequence[Tensor | None]:
    """Gradients of all but the matrix."""
    tensors, about = inputs[:TENSORS], inputs[TENSORS:]
    given = *tensors, *arriving(tensors[2], about[-2], *grads)
    known = known_about(given, about)

    def work(*given):
        x, others = Inputs(*given[:TENSORS], *about), given[TENSORS:]
        return backward(known_problem(x, *others[:3]), x, *others)

    *most, of_memory, _ = repeated(known, given, work, kept)
    return *most, None if of_memory is None else of_memory[:, 0].contiguous().view(tensors[6].shape)


def arriving(values: Tensor, counts: bool, of_reads: Tensor | None, of_last: Tensor | None, of_mass: Tensor | None):
    """Gradients as the kernels take them."""
    of_reads = torch.zeros_like(values) if of_reads is None else in_line(of_reads)
    of_last = None if of_last is None else of_last.contiguous()
    if counts:
        tokens = values.shape[:-1]
        of_mass = values.new_zeros(tokens, dtype=torch.float32) if of_mass is None else of_mass.contiguous()
    return of_reads, of_last, of_mass


def handed_on(made: Sequence[Tensor | None], saves: bool) -> Sequence[Tensor | None]:
    """Without what only backward needs, if nothing is saved for it."""
    return made if saves else made[:-1]


def shapes(*inputs) -> Sequence[Tensor | None]:
    x = Inputs(*inputs)
    p = problem({}, x)
    return handed_on(results(p, x.values, rooms_for(p, x)[0]), x.saves)


memory_scan = Operation("memory_scan", INPUTS, scan_op, scan_back_op, shapes, learned=7, results=3, kept_from=3)


def recorded(*inputs) -> Recording | None:
    return known_about(inputs[:TENSORS], inputs[TENSORS:]).get(RECORDING)


def recorded_back(grads, kept, *inputs) -> Recording | None:
    """None, too, where gradients do not come as the kernels take them, or that of a memory has to be found."""
    tensors, about = inputs[:TENSORS], inputs[TENSORS:]
    arrived = arriving(tensors[2], about[-2], *grads)
    usual = tensors[6] is None and same(arrived, grads)
    return known_about((*tensors, *arrived), about).get(RECORDING) if usual else None


REPEATABLE = Repeatable(memory_scan, recorded, recorded_back)


def habits_of(gates: Gates, memory: Tensor | None, look: Look | None) -> list[Habit]:
    """Of passes with gradients, by all that is said beside tensors."""
    log_keep, erase, write, limit = gates
    there = log_keep is None, erase is None, write is None, write is erase, memory is None
    return known_of(("habits", look and (look.matrix is None, look[2:]), limit, there)).setdefault("habits", [])


def given_to(queries, keys, values, gates, memory, look) -> list[Tensor]:
    """Without what is None, or there twice."""
    log_keep, erase, write, _ = gates
    write, matrix = None if write is erase else write, look and look.matrix
    return [x for x in (queries, keys, values, log_keep, erase, write, memory, matrix) if x is not None]


def scan_again(queries, keys, values, gates, memory, look) -> tuple[Tensor, ...] | None:
    """Reads and the last page, where the same was done before with tensors of the same layout; with gradients only."""
    habits = habits_of(gates, memory, look)
    return again(habits, given_to(queries, keys, values, gates, memory, look)) if habits else None


def scan(
    queries, keys, values, gates, memory: Tensor | None, look: Look | None = None, counts: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As the plain forms, but for raw queries and keys where a look says what becomes of them; no memory is a bare one.

    Where keys are counted, the last column of the memory is their sum, and the last result what queries read of it;
    elsewhere that means nothing.
    """
    log_keep, erase, write, limit = gates
    first = queries, keys, values, gates, memory, look
    shared = erase is not None and erase is write
    queries, keys, values = in_line(queries), in_line(keys), in_line(values)
    if log_keep is not None and log_keep.ndim == 4:
        log_keep = in_line(log_keep)
    about = look or PLAIN
    matrix = None if about.matrix is None else about.matrix.float().contiguous()
    memory = None if memory is None else memory.float().contiguous()
    saves = wants_gradients(queries, keys, values, gates, memory)
    if not saves and short(queries):
        if memory is None:
            features = about.features(queries.shape[-1])
            memory = values.new_zeros(len(values), values.shape[2], features, values.shape[-1], dtype=torch.float32)
        return decode(queries, keys, values, log_keep, erase, write, memory, matrix, *about[2:], limit or 0.0, counts)
    repeatable, inputs = sums.REPEATABLE, (queries, keys, values, memory)
    if not sums_up(gates, about, counts):
        tensors = queries, keys, values, log_keep, erase, None if shared else write, memory, matrix
        repeatable, inputs = REPEATABLE, (*tensors, *about[2:], limit or 0.0, shared, counts, saves)
    reads, last, *mass = repeatable.operation(*inputs)
    if saves and not counts and not watched():
        accustom(habits_of(*first[3:]), repeatable, given_to(*first), inputs)
    return reads, last, mass[0] if mass else None


def sums_up(gates: Gates, look: Look, counts: bool) -> bool:
    """Whether nothing is done but to add up values under keys as they are."""
    bare = (look.map, look.scale) == BARE[:2] and not counts
    return bare and all(gate is None for gate in gates[:3])


def wants_gradients(queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Tensor | None) -> bool:
    if not torch.is_grad_enabled():
        return False
    if queries.requires_grad or keys.requires_grad or values.requires_grad:  # as nearly always
        return True
    return any(x is not None and x.requires_grad for x in (*gates[:3], memory))


def kernel_for(queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Tensor | None) -> str:
    """The one that `scan` would launch, by the name that it is trusted by."""
    decodes = short(queries) and not wants_gradients(queries, keys, values, gates, memory)
    return "memory_decode" if decodes else "memory_scan"


def refusal(queries: Tensor, keys: Tensor, values: Tensor, memory: Tensor | None, look: Look | None) -> str | None:
    """Why this cannot be done here, if it cannot."""
    if not queries.is_cuda and not INTERPRETED:
        return f"the fused backend needs a CUDA device; found {queries.device}"
    same = queries.dtype == keys.dtype == values.dtype and queries.dtype in PRECISIONS
    if not same or (memory is not None and memory.dtype == torch.float64):
        found = ", ".join(sorted({str(x.dtype).removeprefix("torch.") for x in (queries, keys, values)}))
        return f"the fused backend knows queries, keys and values all of float32, bfloat16 or float16; found {found}"
    features = (look or PLAIN).features(queries.shape[-1])
    if max(features, values.shape[-1]) > MOST:
        return f"the fused backend holds at most {MOST} features and values; found {features} and {values.shape[-1]}"
    return None
