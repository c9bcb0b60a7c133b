"""Mixers: the parts of a model in which tokens meet. Imported here, so that each is known by name."""

from .bounded_memory import BoundedMemory
from .delta_delta import DeltaDeltaNet
from .delta_lstm import DeltaLSTM
from .delta_mlp import DeltaMLP
from .delta_rnn import DeltaRNN
from .fast_weight import FastWeight
from .lstm import LSTM
from .mixer import Mixer
from .recurrent_delta import RecurrentDeltaNet
from .rnn import RNN
from .self_referential import SelfReferential
from .slow_lstm import SlowLSTM
from .softmax_attention import SoftmaxAttention
from .source_attention import MemorySource, SoftmaxSource, SourceAttention

__all__ = [
    "LSTM",
    "RNN",
    "BoundedMemory",
    "DeltaDeltaNet",
    "DeltaLSTM",
    "DeltaMLP",
    "DeltaRNN",
    "FastWeight",
    "MemorySource",
    "Mixer",
    "RecurrentDeltaNet",
    "SelfReferential",
    "SlowLSTM",
    "SoftmaxAttention",
    "SoftmaxSource",
    "SourceAttention",
]
