"""Language models that learn to recall: how many answers are right, and how many bytes were kept to give them."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..batch import Batch
from ..data.retrieval import MQAR, RecallTask
from ..models.language_model import LanguageModel, LanguageNetwork
from ..serialise import to_json
from ..spec import Size, Spec
from ..state import leaves
from ..world import in_this_thread


@dataclass(frozen=True)
class Recollection(Spec):
    """A language model, what it has to recall, and how it is trained: with AdamW and a cosine."""

    task: RecallTask = MQAR()
    model: LanguageModel = LanguageModel(width=64, layers=2)
    rate: float = 3e-3
    batch: Size = 64
    steps: Size = 2000
    seed: int = 1
    sequences: Size = 256  # scored at the end

    def measure(self, device: torch.device) -> dict[str, Any]:
        chance, start = np.random.default_rng(self.seed), time.monotonic()
        network = self.model.build(self.task.tokens, torch.Generator().manual_seed(self.seed)).to(device)
        optimiser = torch.optim.AdamW(network.parameters(), self.rate, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        for _ in range(self.steps):
            loss = nats_per_answer(network, self.task.draw(self.batch, chance).to(device))
            optimiser.zero_grad(set_to_none=True)
            with in_this_thread():
                loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        found = score(network, self.task.draw(self.sequences, chance).to(device))
        parameters = sum(parameter.numel() for parameter in network.parameters())
        return {**found, "parameters": parameters, "seconds": time.monotonic() - start, "asked": to_json(self)}


def nats_per_answer(network: LanguageNetwork, batch: Batch) -> torch.Tensor:
    nats, _ = network(batch)
    return nats[batch.mask].mean()


@torch.no_grad()
def score(network: LanguageNetwork, batch: Batch) -> dict[str, float]:
    """The share of right answers, and the bytes of the state after the last token of one sequence."""
    hidden, state = network.read(batch.inputs, None)
    answers = network.head.log_probabilities(hidden[batch.mask]).argmax(-1)
    kept = sum(leaf.numel() * leaf.element_size() for leaf in leaves(state.blocks)) // len(batch.inputs)
    return {"accuracy": (answers == batch.targets[batch.mask]).double().mean().item(), "bytes": kept}
