"""Cases of single operations, in float64: what each reads, remembers and gives back as gradients."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from closeness import close
from safetensors.torch import load_file
from torch import Tensor

from palimpsest.attention.positions import sinusoids
from palimpsest.kernels import Gates, memory_scan
from palimpsest.kernels.activations import Activation, Bare, Sigmoid, Softmax
from palimpsest.kernels.attention_blocked import to_keys
from palimpsest.kernels.attention_plain import visible
from palimpsest.kernels.delta_lstm import delta_lstm
from palimpsest.kernels.delta_rnn import delta_rnn
from palimpsest.kernels.recurrent_delta import recurrent_delta
from palimpsest.memory.feature_maps import DPFP, EluPlusOne, Favor

Given = Mapping[str, Tensor]
Outcome = tuple[Tensor, dict[str, Tensor]]  # what is read, and the states after the last token

EXACT, GUARDED = Softmax(), Softmax(epsilon=1e-6)


def check(path: Path) -> None:
    assert path.stem in OPERATIONS, f"{path} is an operation of no known kind"
    OPERATIONS[path.stem](load_file(path))


def checked(operation: Callable[[Given, Given], Outcome]) -> Callable[[dict[str, Tensor]], None]:
    """What goes in, and what comes out, is `b h t x` with the originals; here it is `b t h x`."""

    def check_operation(case: dict[str, Tensor]) -> None:
        given = {name: value.requires_grad_() for name, value in under(case, "in.")}
        states = dict(under(case, "state0."))
        ours = {name: swapped(value) for name, value in given.items()}
        out, after = operation(ours, states)
        out = swapped(out)
        close(out, case["out"], 1e-10, "out")
        for name, expected in under(case, "stateT."):
            close(after[name], expected, 1e-10, f"the state {name}")
        out.backward(case["grad_out"])
        for name, expected in under(case, "grad."):
            gradient = given[name].grad
            assert gradient is not None, name
            close(gradient, expected, 1e-10, f"the gradient of {name}")

    return check_operation


def under(case: Mapping[str, Tensor], start: str) -> Iterator[tuple[str, Tensor]]:
    return ((name.removeprefix(start), value) for name, value in case.items() if name.startswith(start))


def swapped(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def add(given: Given, states: Given) -> Outcome:
    reads, memory = memory_scan(given["q"], given["k"], given["v"], Gates(), states["W"])
    return reads, {"W": memory}


def delta(given: Given, states: Given) -> Outcome:
    beta = given["beta"].squeeze(-1)
    gates = Gates(erase=beta, write=beta)
    reads, memory = memory_scan(given["q"], given["k"], given["v"], gates, states["W"])
    return reads, {"W": memory}


def softmax_state(given: Given, states: Given) -> Outcome:
    """Delta RNN, whose state is a softmax."""
    sums, memory = rnn(given, states["W"], states["h0"].squeeze(2), EXACT)
    out = EXACT.of(sums)
    return out, {"W": memory, "h0": swapped(out[:, -1:])}


def softmax_feedback(given: Given, states: Given) -> Outcome:
    """Delta RNN, of whose state a softmax is fed back."""
    sums, memory = rnn(given, states["W"], GUARDED.of(states["h0"].squeeze(2)), GUARDED)
    return sums, {"W": memory, "h0": swapped(sums[:, -1:])}


def rnn(given: Given, memory: Tensor, fed: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    return delta_rnn(given["z"], given["k"], given["v"], given["beta"].squeeze(-1), memory, fed, activation)


def lstm(squash: Activation, beside: str | None = None) -> Callable[[Given, Given], Outcome]:
    """Delta LSTM, of whose state a softmax is fed back."""

    def operation(given: Given, states: Given) -> Outcome:
        fed = GUARDED.of(states["h0"].squeeze(2))
        sums, after = gated(given, states, fed, GUARDED, squash, beside)
        return sums, after | {"h0": swapped(sums[:, -1:])}

    return operation


def softmax_state_lstm(given: Given, states: Given) -> Outcome:
    """Delta LSTM, whose state is a softmax."""
    sums, after = gated(given, states, states["h0"].squeeze(2), EXACT, Sigmoid(), None)
    out = EXACT.of(sums)
    return out, after | {"h0": swapped(out[:, -1:])}


def gated(
    given: Given, states: Given, fed: Tensor, activation: Activation, squash: Activation, beside: str | None
) -> Outcome:
    inputs, keys, values, betas = (
        torch.stack([given[g + name] for g in "iuo"], dim=3) for name in ("z", "k", "v", "beta")
    )
    memory = torch.stack([states[f"W{g}"] for g in "iuo"], dim=2)
    sums, memory, cell = delta_lstm(
        inputs, keys, values, betas.squeeze(-1), memory, fed, states["c0"].squeeze(2), activation, squash,
        None if beside is None else given[beside],
    )  # fmt: skip
    return sums, {f"W{g}": page for g, page in zip("iuo", memory.unbind(2), strict=True)} | {"c0": cell.unsqueeze(2)}


def recurrent(given: Given, states: Given) -> Outcome:
    inputs = torch.cat([given[name] for name in ("qx", "kx", "vx", "bx")], dim=-1)
    *matrices, column = (swapped(given[name])[0] for name in ("R_q", "R_k", "R_v", "r_b"))
    weights = torch.cat([*matrices, column.mT], dim=-1)
    reads, memory = recurrent_delta(inputs, weights, states["W"], states["h0"].squeeze(2), EXACT)
    return reads, {"W": memory, "h0": swapped(reads[:, -1:])}


def feature_maps(case: dict[str, Tensor]) -> None:
    x = case["x"]
    close(EluPlusOne().map(x), case["elu1"], 1e-6, "elu1")
    for name, expected in case.items():
        kind, _, rest = name.partition("_")
        if kind == "dpfp":
            close(DPFP(int(rest.removeprefix("nu"))).map(x), expected, 1e-6, name)
        elif kind == "favor" and name.endswith(".phi"):
            directions = case[name.replace(".phi", ".proj")]
            features = Favor(directions.shape[1]).build(len(directions))
            features.load_state_dict({"matrix": directions})
            close(features(x), expected, 1e-6, name)
        elif kind == "sinusoid":
            width, places = (int(number) for number in (rest[1:].partition("_")[0], len(expected)))
            close(sinusoids(torch.arange(places - 1, -1, -1), width, 10000.0, x.dtype), expected, 1e-6, name)
        elif kind == "mask":
            close(masked(*(int(re.sub(r"\D", "", number)) for number in rest.split("_"))), expected.bool(), what=name)
    check_shift(case["rel_shift.in"], case["rel_shift.out"])


def masked(queries: int, filled: int, memory: int, same_length: int) -> Tensor:
    keys = filled + queries
    return ~visible(queries, keys, memory if same_length else keys, None, torch.device("cpu"))


def check_shift(by_distance: Tensor, expected: Tensor) -> None:
    """`t r b h`, the farthest distance first; what lies in the future is junk."""
    rows, count = expected.shape[:2]
    shifted = to_keys(by_distance.permute(2, 3, 0, 1), count).permute(2, 3, 0, 1)
    past = torch.ones(rows, count).tril(count - rows).bool()
    assert torch.equal(shifted[past], expected[past]), "rel_shift"


OPERATIONS: dict[str, Callable[[dict[str, Tensor]], None]] = {
    "sum": checked(add),
    "delta": checked(delta),
    "delta_rnn_v1": checked(softmax_state),
    "delta_rnn_v2": checked(softmax_feedback),
    "delta_lstm_v1": checked(softmax_state_lstm),
    "delta_lstm_v2": checked(lstm(Sigmoid())),
    "delta_lstm_v3": checked(lstm(Sigmoid(), beside="uz")),
    "delta_lstm_v4": checked(lstm(Bare())),
    "rdn_tanh": checked(recurrent),
    "feature_maps": feature_maps,
}
