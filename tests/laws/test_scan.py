"""The laws of the memory scan: several forms, one answer, whatever the gates, lengths and chunks."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import pytest
import torch
from closeness import all_close, close
from forms import EXACT_BACKENDS as BACKENDS
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palimpsest.kernels import BackendRefused, Gates, chunked, counted_scan, memory_scan

CHUNK = 4
LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3)
GATES = list(product(("no keep", "keep", "keep per feature"), ("no erase", "erase"), ("no write", "write")))
SUM, DELTA, GATED_DELTA = GATES[0], GATES[3], GATES[7]

every_gate = pytest.mark.parametrize("present", GATES, ids=", ".join)
every_keep = pytest.mark.parametrize("present", [gates for gates in GATES if gates[0] != "no keep"], ids=", ".join)
every_length = pytest.mark.parametrize("length", LENGTHS)
every_backend = pytest.mark.parametrize("backend", BACKENDS)


@dataclass(frozen=True)
class Scan:
    """What a scan is given."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    log_keep: Tensor | None
    erase: Tensor | None
    write: Tensor | None
    memory: Tensor | None

    @classmethod
    def drawn(cls, present=GATED_DELTA, *, batch=2, length=7, heads=2, features=3, width=5) -> "Scan":
        keep, erase, write = present
        tokens = (batch, length, heads)
        queries, keys = torch.randn(2, *tokens, features)
        return cls(
            queries,
            keys,
            torch.randn(*tokens, width),
            None if keep == "no keep" else -torch.rand(*tokens, features) if "feature" in keep else -torch.rand(tokens),
            torch.rand(tokens) if erase == "erase" else None,
            torch.rand(tokens) if write == "write" else None,
            torch.randn(batch, heads, features, width),
        )

    def given(self) -> dict[str, Tensor]:
        return {name: x for name, x in vars(self).items() if x is not None}

    def map(self, function) -> "Scan":
        return replace(self, **{name: function(x) for name, x in self.given().items()})

    def tokens(self, part: slice, memory: Tensor | None) -> "Scan":
        return replace(self.map(lambda x: x[:, part]), memory=memory)

    def run(self, backend: str | None = None, chunk: int | None = None) -> tuple[Tensor, Tensor]:
        gates = Gates(self.log_keep, self.erase, self.write)
        return memory_scan(self.queries, self.keys, self.values, gates, self.memory, backend=backend, chunk=chunk)

    def outcome(
        self, backend: str | None = None, chunk: int | None = None, cut: int | None = None
    ) -> dict[str, Tensor]:
        """Reads, last memory and the gradient of every input, of one weighted sum of both."""
        leaf = self.map(lambda x: x.detach().requires_grad_())
        if cut is None:
            reads, memory = leaf.run(backend, chunk)
        else:
            early, memory = leaf.tokens(slice(cut), leaf.memory).run(backend, chunk)
            late, memory = leaf.tokens(slice(cut, None), memory).run(backend, chunk)
            reads = torch.cat([early, late], dim=1)
        chance = torch.Generator().manual_seed(1)
        weighed = [(x * torch.randn(x.shape, generator=chance).to(x)).sum() for x in (reads, memory)]
        sum(weighed).backward()
        gradients = {f"gradient of {name}": x.grad for name, x in leaf.given().items()}
        return {"reads": reads.detach(), "last memory": memory.detach()} | gradients


@every_gate
def test_a_wiped_page_is_a_fresh_one_in_every_form(present):
    scan, at = Scan.drawn(present, length=2 * CHUNK + 3), torch.tensor([[CHUNK], [CHUNK + 2]])
    starts = torch.arange(2 * CHUNK + 3) == at
    gates = Gates(scan.log_keep, scan.erase, scan.write).wiping(starts, scan.keys)
    wiped = replace(scan, log_keep=gates.log_keep)
    reads, _ = scan.run("reference")
    for row, first in enumerate(at.flatten().tolist()):
        alone = scan.map(lambda x, row=row: x[row : row + 1]).tokens(slice(first, None), None).run("reference")
        for backend in BACKENDS:
            found, after = wiped.run(backend)
            close(found[row, :first], reads[row, :first])
            close(found[row, first:], alone[0][0])
            close(after[row], alone[1][0])
    truth = wiped.outcome("reference")
    for backend in BACKENDS:
        all_close(wiped.outcome(backend), truth)


@every_gate
@every_length
def test_every_form_is_the_definition(present, length):
    scan = Scan.drawn(present, length=length)
    truth = scan.outcome("reference")
    for backend in (*BACKENDS, None):
        all_close(scan.outcome(backend), truth)


@every_gate
@every_length
def test_the_chunk_size_is_invisible(present, length):
    scan = Scan.drawn(present, length=length)
    truth = scan.outcome("reference")
    for chunk in (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 32):
        all_close(scan.outcome("chunked", chunk), truth)


@every_gate
@pytest.mark.parametrize("more", (-1, 0, 1))
def test_the_chunk_size_taken_by_default_is_invisible(present, more):
    chunk = chunked.FEATURE_CHUNK if "feature" in present[0] else chunked.CHUNK
    scan = Scan.drawn(present, batch=1, length=chunk + more)
    all_close(scan.outcome(), scan.outcome("reference"))


@given(
    sizes=st.fixed_dictionaries(
        {name: st.integers(1, 4) for name in ("batch", "heads", "features", "width")} | {"length": st.integers(1, 20)}
    ),
    present=st.sampled_from(GATES),
    chunk=st.integers(1, 24),
    seed=st.integers(0, 2**32),
)
def test_sizes_are_free(sizes, present, chunk, seed):
    torch.manual_seed(seed)
    scan = Scan.drawn(present, **sizes)
    truth = scan.outcome("reference")
    all_close(scan.outcome("recurrent"), truth)
    all_close(scan.outcome("chunked", chunk), truth)


@every_gate
@every_backend
def test_cutting_a_segment_anywhere_changes_nothing(present, backend):
    scan = Scan.drawn(present, length=6)
    whole = scan.outcome(backend)
    for cut in range(1, 6):
        all_close(scan.outcome(backend, cut=cut), whole)


@every_gate
@every_backend
def test_no_memory_is_an_empty_page(present, backend):
    scan = Scan.drawn(present)
    empty = replace(scan, memory=torch.zeros_like(scan.memory))
    for actual, expected in zip(replace(scan, memory=None).run(backend), empty.run(backend), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("squared_length", (0.5, 1.0, 1.5, 3.0))
@pytest.mark.parametrize("length", (7, 64, 130))
def test_a_page_written_under_one_key_again_and_again_stays_exact(squared_length, length):
    scan = with_one_key(squared_length, length)
    all_close(scan.outcome("chunked"), scan.outcome("reference"))


@pytest.mark.parametrize("squared_length", (0.5, 1.0, 1.5))
def test_a_page_written_under_one_key_again_and_again_stays_near_the_truth_in_float32(squared_length):
    scan = with_one_key(squared_length, 130)
    all_close(scan.map(Tensor.float).outcome("chunked"), scan.outcome("reference"), 1e-5)


def with_one_key(squared_length: float, length: int) -> Scan:
    """Every token erases and writes, with β = 1, under the same key."""
    scan = Scan.drawn(DELTA, length=length)
    key = scan.keys[:, :1] / scan.keys[:, :1].norm(dim=-1, keepdim=True) * squared_length**0.5
    always = torch.ones_like(scan.erase)
    return replace(scan, keys=key.expand_as(scan.keys), erase=always, write=always)


@every_keep
@pytest.mark.parametrize("strongest", (20, 200, 10_000))
def test_strong_forgetting_is_exact(present, strongest):
    scan = Scan.drawn(present, length=23)
    some = torch.rand_like(scan.log_keep) < 0.5
    scan = replace(scan, log_keep=torch.where(some, strongest * scan.log_keep, scan.log_keep))
    truth = scan.outcome("reference")
    assert all(x.isfinite().all() for x in truth.values())
    for chunk in (CHUNK, 32):
        all_close(scan.outcome("chunked", chunk), truth)
    all_close(scan.outcome("recurrent"), truth)


@every_keep
def test_what_comes_after_a_great_forgetting_is_not_lost_in_float32(present):
    scan = Scan.drawn(present, length=64)
    some = torch.rand_like(scan.log_keep) < 0.1
    scan = replace(scan, log_keep=torch.where(some, -1e6, scan.log_keep), keys=scan.keys / 4)
    truth, single = scan.outcome("reference"), scan.map(Tensor.float).outcome("chunked", 32)
    for name in ("reads", "last memory"):
        close(single[name].double(), truth[name], 1e-5, name)


@every_keep
@every_backend
def test_a_page_of_which_nothing_is_kept_holds_the_present_alone(present, backend):
    scan = Scan.drawn(present, length=9)
    scan = replace(scan, log_keep=torch.full_like(scan.log_keep, -1e4))  # its exponential is zero
    note = scan.values if scan.write is None else scan.write[..., None] * scan.values
    outcome = scan.outcome(backend)
    close(outcome["reads"], (scan.queries * scan.keys).sum(-1, keepdim=True) * note)
    close(outcome["last memory"], scan.keys[:, -1, ..., None] * note[:, -1, ..., None, :])
    assert all(x.isfinite().all() for x in outcome.values())


@every_gate
@pytest.mark.parametrize("block", (1, 64, 200))
def test_the_blocks_taken_at_once_are_invisible(present, block, monkeypatch):
    scan = Scan.drawn(present, length=11)
    whole = scan.outcome("chunked", 2)
    monkeypatch.setattr(chunked, "BLOCK", block)  # two rows and heads of three features and five values: 32 a chunk
    all_close(scan.outcome("chunked", 2), whole)


@pytest.mark.parametrize("present", [gates for gates in GATES if "no erase" in gates], ids=", ".join)
def test_who_does_not_erase_does_not_solve(present, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("solved")

    monkeypatch.setattr(torch.linalg, "solve_triangular", refuse)
    Scan.drawn(present).outcome("chunked", CHUNK)
    with pytest.raises(AssertionError, match="solved"):
        Scan.drawn(DELTA).outcome("chunked", CHUNK)


@every_gate
@every_backend
def test_inputs_may_lie_in_memory_as_they_like(present, backend):
    scan = Scan.drawn(present)
    scattered = scan.map(lambda x: x.transpose(0, -1).contiguous().transpose(0, -1))
    assert not any(x.is_contiguous() for x in scattered.given().values())
    all_close(scattered.outcome(backend), scan.outcome(backend))


@every_gate
@every_backend
def test_inputs_may_be_expanded(present, backend):
    scan = Scan.drawn(present)
    expanded = scan.map(lambda x: x[:1, :1].expand_as(x))
    all_close(expanded.outcome(backend), expanded.map(Tensor.contiguous).outcome(backend))


@every_backend
@pytest.mark.parametrize("half", (torch.float16, torch.bfloat16), ids=str)
def test_half_precision_is_read_and_written_on_a_float32_page(backend, half):
    scan = Scan.drawn(batch=1).map(lambda x: x.to(half))
    for memory in (scan.memory, scan.memory.float()):
        reads, page = replace(scan, memory=memory).run(backend)
        assert (reads.dtype, page.dtype) == (half, torch.float32)
        close(page, replace(scan, memory=memory).map(Tensor.double).run("reference")[1], 1e-5)
    assert replace(scan, memory=None).run(backend)[1].dtype == torch.float32


@every_backend
def test_a_float64_page_stays_one(backend):
    scan = Scan.drawn().map(Tensor.float)
    reads, page = replace(scan, memory=scan.memory.double()).run(backend)
    assert (reads.dtype, page.dtype) == (torch.float32, torch.float64)
    close(page, scan.map(Tensor.double).run("reference")[1])


def test_one_token_takes_the_recurrent_form_and_more_the_chunked_one(monkeypatch):
    for length, chosen in ((1, "recurrent"), (2, "chunked"), (100, "chunked")):
        monkeypatch.setattr("palimpsest.kernels.scan.BACKENDS", {chosen: BACKENDS[chosen]})
        Scan.drawn(length=length).run()


@pytest.mark.parametrize("name", ("queries", "keys", "values", "log_keep", "erase", "write", "memory"))
def test_a_tensor_of_the_wrong_shape_is_named_with_the_axes_it_should_have(name):
    scan = Scan.drawn()
    with pytest.raises(ValueError, match=rf"^{name}: expected the axes b.* h.*, found the shape \(1, 2, "):
        replace(scan, **{name: vars(scan)[name][None]}).run()


@pytest.mark.parametrize("name", ("keys", "values", "log_keep", "erase", "write", "memory"))
def test_a_tensor_that_disagrees_with_the_others_is_named_with_the_sizes_it_should_have(name):
    scan = Scan.drawn()
    with pytest.raises(ValueError, match=rf"^{name}: expected the axes b=2 .*h=2.*, found the shape \(1, "):
        replace(scan, **{name: vars(scan)[name][:1]}).run()


def test_what_cannot_be_had_is_refused_with_the_reason():
    scan = Scan.drawn()
    with pytest.raises(BackendRefused, match="no backend 'chunky'; there are reference, recurrent, chunked"):
        scan.run("chunky")
    for backend in ("reference", "recurrent"):
        with pytest.raises(BackendRefused, match=f"chunked backend only, not to '{backend}'"):
            scan.run(backend, CHUNK)
    with pytest.raises(BackendRefused, match="at least one token; found a size of 0"):
        scan.run("chunked", 0)
    with pytest.raises(ValueError, match="found no t"):
        scan.tokens(slice(0), scan.memory).run()


# ------------------------------------------------------------------------------------------------ keys that are counted

COUNTED = {name: {"backend": name} for name in (*BACKENDS, None)} | {
    "in chunks": {"backend": "chunked", "chunk": CHUNK}
}


def count(scan: Scan, column: Tensor, **form) -> tuple[Tensor, ...]:
    gates = Gates(scan.log_keep, scan.erase, scan.write)
    return counted_scan(scan.queries, scan.keys, scan.values, gates, scan.memory, column, **form)


def count_apart(scan: Scan, column: Tensor) -> tuple[Tensor, ...]:
    """In a page of one column, in which every key writes a one."""
    counting = Gates(scan.log_keep, write=scan.write if scan.erase is None else None)
    ones = torch.ones_like(scan.values[..., :1])
    mass, column = memory_scan(scan.queries, scan.keys, ones, counting, column, backend="reference")
    return *scan.run("reference"), mass.squeeze(-1), column


def taught(form, scan: Scan, column: Tensor) -> dict[str, Tensor]:
    """All that comes out, and the gradient of every input."""
    leaf, column = scan.map(lambda x: x.detach().requires_grad_()), column.detach().requires_grad_()
    found = dict(zip(("reads", "memory", "mass", "column"), form(leaf, column), strict=True))
    chance = torch.Generator().manual_seed(1)
    weighed = [(x * torch.randn(x.shape, generator=chance).to(x)).sum() for x in found.values()]
    given = leaf.given() | {"first column": column}
    gradients = torch.autograd.grad(sum(weighed), list(given.values()))
    return found | {f"gradient of {name}": x for name, x in zip(given, gradients, strict=True)}


@every_gate
@every_length
def test_keys_are_counted_as_in_a_page_of_ones(present, length):
    scan, column = Scan.drawn(present, length=length), torch.rand(2, 2, 3, 1)
    truth = taught(count_apart, scan, column)
    for form in COUNTED.values():
        all_close(taught(partial(count, **form), scan, column), truth)


@every_backend
def test_mass_is_as_exact_as_the_column(backend):
    scan = Scan.drawn(SUM).map(lambda x: x.to(torch.bfloat16))
    _, _, mass, column = count(
        replace(scan, memory=None), torch.zeros(2, 2, 3, 1, dtype=torch.float32), backend=backend
    )
    assert mass.dtype == column.dtype == torch.float32


def test_a_column_is_one_column():
    with pytest.raises(ValueError, match=r"^column: expected the axes b h k 1, found the shape"):
        count(Scan.drawn(SUM), torch.zeros(2, 2, 3, 2))
    with pytest.raises(ValueError, match=r"^column: expected the axes b=2 h=2 k=3 1, found the shape"):
        count(Scan.drawn(SUM), torch.zeros(2, 2, 4, 1))
