"""The carried states of fast weight memories and recurrent mixers, as lmtool-fwms lists them for each layer."""

from torch import Tensor

from palimpsest.legacy.lmtool_recurrent import BluntlyNormalisedState
from palimpsest.mixers.delta_lstm import DeltaLSTMState
from palimpsest.mixers.delta_mlp import DeltaMLPState
from palimpsest.mixers.delta_rnn import DeltaRNNState
from palimpsest.mixers.fast_weight import FastWeightState, KeySum
from palimpsest.mixers.lstm import LSTMState
from palimpsest.mixers.recurrent_delta import RecurrentDeltaNetState
from palimpsest.mixers.rnn import RNNState
from palimpsest.mixers.slow_lstm import SlowLSTMState
from palimpsest.state import State


def as_carried(state: State) -> list[Tensor | None]:
    """In their order and shapes; None where they keep None. What they do not carry at all has no list."""
    match state:
        case FastWeightState(memory, key_sum):
            return [memory, summed(key_sum)]
        case DeltaRNNState(memory, recurrent, said):
            return [memory, recurrent, said.unsqueeze(2)]
        case DeltaLSTMState(memory, recurrent, said, cell):
            return [*memory.unbind(2), *recurrent.unbind(2), said.unsqueeze(2), cell.unsqueeze(2)]
        case SlowLSTMState(memory, key_sum, LSTMState(said, cell)):
            return [memory, summed(key_sum), said[None], cell[None]]
        case RecurrentDeltaNetState(memory, read):
            return [memory, None, read.unsqueeze(2)]
        case BluntlyNormalisedState(memory, key_sum, read):
            return [memory, summed(key_sum), read.unsqueeze(2)]
        case LSTMState(said, cell):
            return [said[None], cell[None]]
        case RNNState(said):
            return [said[None]]
        case DeltaMLPState(blocks):
            return [blocks[-1].down]
    raise TypeError(f"not a state of a recurrent mixer that the original carries: {type(state).__name__}")


def summed(key_sum: KeySum | None) -> Tensor | None:
    return None if key_sum is None else key_sum.column.mT
