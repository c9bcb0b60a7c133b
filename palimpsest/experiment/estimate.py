"""What a recipe would take, without carrying it out."""

import torch
from torch import Tensor

from ..batch import Batch
from ..models.language_model import LanguageNetwork
from ..training.trainer import pieces
from .recipe import Recipe
from .trained import read_tokens

# beside the weights: a gradient and at most two running means for each
COPIES = 4


def estimate(recipe: Recipe) -> str:
    tokens = read_tokens(recipe, recipe.run.start_from)
    with torch.device("meta"):
        model = recipe.model.build(tokens.codec.size)
        rows = pieces(recipe.data.batch, recipe.run.accumulation)[0]
        saved = saved_bytes(model, rows.stop, recipe.data.segment)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    per_step = recipe.data.batch * recipe.data.segment
    train = tokens.splits["train"].tokens
    return "\n".join(
        [
            f"parameters       {parameters:,}",
            f"vocabulary       {tokens.codec.size:,} {tokens.codec.unit}s",
            f"tokens a step    {per_step:,} ({recipe.data.batch} rows of {recipe.data.segment})",
            f"tokens in all    {per_step * recipe.run.steps:,} ({per_step * recipe.run.steps / train:.1f} epochs)",
            f"memory, roughly  {mebibytes(COPIES * weights + saved)}: {mebibytes(COPIES * weights)} for weights, "
            f"gradients and optimiser, {mebibytes(saved)} kept for the backward pass",
        ]
    )


def mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def saved_bytes(model: LanguageNetwork, rows: int, segment: int) -> int:
    """What autograd keeps for the backward pass, counted on tensors that have a shape but no memory."""
    storages: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes()
        return tensor

    ids = torch.zeros(rows, segment, dtype=torch.long, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model(Batch(ids, ids))
    return sum(storages.values())
