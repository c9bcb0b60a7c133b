"""What a recipe would take, without carrying it out."""

from dataclasses import replace

import torch
from torch import Tensor

from ..batch import Batch
from ..models.embeddings import AdaptiveEmbedding, TokenEmbedding
from ..models.heads import AdaptiveSoftmax, SoftmaxHead
from ..models.language_model import LanguageModel, LanguageNetwork
from ..training.trainer import pieces
from .recipe import Recipe
from .trained import read_tokens

# beside the weights: a gradient and at most two running means for each
COPIES = 4


def estimate(recipe: Recipe) -> str:
    tokens = read_tokens(recipe, recipe.run.start_from)
    with torch.device("meta"):
        model = recipe.model.build(tokens.codec.size)
        measured = with_plain_vocabulary(recipe.model).build(tokens.codec.size)
    rows = pieces(recipe.data.batch, recipe.run.accumulation)[0]
    saved = saved_bytes(measured, rows.stop, recipe.data.segment, recipe.run.carry)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    copies = COPIES + (recipe.run.average is not None)
    per_step = recipe.data.batch * recipe.data.segment
    train = tokens.splits["train"].tokens
    return "\n".join(
        [
            f"parameters       {parameters:,}",
            f"vocabulary       {tokens.codec.size:,} {tokens.codec.unit}s",
            f"tokens a step    {per_step:,} ({recipe.data.batch} rows of {recipe.data.segment})",
            f"tokens in all    {per_step * recipe.run.steps:,} ({per_step * recipe.run.steps / train:.1f} epochs)",
            f"memory, roughly  {mebibytes(copies * weights + saved)}: {mebibytes(copies * weights)} for weights, "
            f"gradients and optimiser, {mebibytes(saved)} kept for the backward pass",
        ]
    )


def mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def with_plain_vocabulary(model: LanguageModel) -> LanguageModel:
    """A stand-in for tables that sort tokens by their numbers, which nothing has here; as much is kept."""
    embedding, head = model.embedding, model.head
    if isinstance(embedding, AdaptiveEmbedding):
        embedding = TokenEmbedding(positions=embedding.positions, dropout=embedding.dropout)
    if isinstance(head, AdaptiveSoftmax):
        head = SoftmaxHead(dropout=head.dropout, chunk=head.chunk)
    return replace(model, embedding=embedding, head=head)


def saved_bytes(model: LanguageNetwork, rows: int, segment: int, carry: bool) -> int:
    """What autograd keeps beside the weights for the backward pass, counted on tensors with a shape but no memory."""
    storages: dict[int, int] = {}
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            storages[storage._cdata] = storage.nbytes()
        return tensor

    ids = torch.zeros(rows, segment, dtype=torch.long, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model(Batch(ids, ids), model.initial_state(rows) if carry else None)
    return sum(storages.values())
