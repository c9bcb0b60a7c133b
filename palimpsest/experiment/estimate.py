"""What a recipe would take, without carrying it out."""

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..models.embeddings import AdaptiveEmbedding, TokenEmbedding
from ..models.heads import AdaptiveSoftmax, SoftmaxHead
from ..models.language_model import LanguageModel
from ..models.translation_model import TranslationModel
from ..training.step import pieces
from .recipe import Recipe
from .trained import read_tokens

Model = TypeVar("Model", LanguageModel, TranslationModel)
# beside the weights: a gradient and at most two running means for each
COPIES = 4


def estimate(recipe: Recipe) -> str:
    tokens = read_tokens(recipe, recipe.run.start_from)
    with torch.device("meta"):
        model = recipe.model.build(tokens.codec.size)
        measured = with_plain_vocabulary(recipe.model).build(tokens.codec.size)
        batch = recipe.data.example()
    piece = batch.rows(pieces(len(batch.inputs), recipe.run.accumulation)[0])
    saved = saved_bytes(measured, piece, recipe.run.carry)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    copies = COPIES + (recipe.run.average is not None)
    per_step = recipe.data.per_step
    epochs = per_step * recipe.run.steps / recipe.data.per_epoch(tokens.splits["train"])
    return "\n".join(
        [
            f"parameters       {parameters:,}",
            f"vocabulary       {tokens.codec.size:,} {tokens.codec.unit}s",
            f"tokens a step    {per_step:,} ({recipe.data.shape})",
            f"tokens in all    {per_step * recipe.run.steps:,} ({epochs:.1f} epochs)",
            f"memory, roughly  {mebibytes(copies * weights + saved)}: {mebibytes(copies * weights)} for weights, "
            f"gradients and optimiser, {mebibytes(saved)} kept for the backward pass",
        ]
    )


def mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def with_plain_vocabulary(model: Model) -> Model:
    """A stand-in for tables that sort tokens by their numbers, which nothing has here; as much is kept."""
    embedding, head = model.embedding, model.head
    if isinstance(embedding, AdaptiveEmbedding):
        embedding = TokenEmbedding(positions=embedding.positions, dropout=embedding.dropout)
    if isinstance(head, AdaptiveSoftmax):
        head = SoftmaxHead(dropout=head.dropout, chunk=head.chunk)
    return replace(model, embedding=embedding, head=head)


def saved_bytes(model: nn.Module, batch: Batch, carry: bool) -> int:
    """What autograd keeps beside the weights for the backward pass, counted on tensors with a shape but no memory."""
    storages: dict[int, int] = {}
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            storages[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model(batch, model.initial_state(len(batch.inputs)) if carry else None)  # pyright: ignore[reportCallIssue]
    return sum(storages.values())
