"""Generation: one token at a time, from the state after all the tokens before. A page never grows.

A model that keeps nothing from one segment to the next is shown the last tokens again for each new one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..spec import NotNegative, Size, Spec


@dataclass(frozen=True)
class Sampling(Spec):
    """How the next token is drawn."""

    temperature: NotNegative = 0.8  # 0 always takes the likeliest
    top_k: Size | None = None  # draw from the k likeliest only
    top_p: float | None = None  # draw from the likeliest that together have this probability

    def __post_init__(self):
        super().__post_init__()
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top-p lies above 0 and not above 1; found {self.top_p}")

    def draw(self, log_probabilities: Tensor, generator: torch.Generator) -> Tensor:
        """`b tokens` -> `b`"""
        if self.temperature == 0:
            return log_probabilities.argmax(-1)
        logits = log_probabilities.cpu() / self.temperature  # one generator for every device
        if self.top_k is not None:
            kth = logits.topk(min(self.top_k, logits.shape[-1])).values[..., -1:]
            logits = logits.masked_fill(logits < kth, -torch.inf)
        if self.top_p is not None:
            logits = keep_nucleus(logits, self.top_p)
        return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)


def keep_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """The fewest likeliest tokens whose probabilities add up to `top_p`; the likeliest always stays."""
    ordered, order = logits.softmax(-1).sort(descending=True)
    beyond = ordered.cumsum(-1) - ordered >= top_p
    return logits.masked_fill(beyond.scatter(-1, order, beyond), -torch.inf)


def generate(
    model: nn.Module,
    prompt: Tensor,
    sampling: Sampling,
    generator: torch.Generator,
    segment: int = 512,
    window: int | None = None,
) -> Iterator[int]:
    """Tokens that follow the prompt, `t`, for ever: the caller decides when it is enough.

    With a `window`, each is foretold from so many tokens before it, read afresh; without, from the state.
    """
    if prompt.numel() == 0:
        raise UserError("the prompt is empty: give at least one token to begin with")
    model.eval()
    if window is not None:
        yield from generate_afresh(model, prompt[None], sampling, generator, window)
    with torch.inference_mode():
        state, log_probabilities = None, None
        for piece in prompt[None].split(segment, dim=1):
            log_probabilities, state = model.predict(piece, state)  # pyright: ignore[reportCallIssue]
    while True:
        token = sampling.draw(log_probabilities, generator)  # pyright: ignore[reportArgumentType]
        yield int(token)
        with torch.inference_mode():
            step = token[:, None].to(prompt.device)
            log_probabilities, state = model.predict(step, state)  # pyright: ignore[reportCallIssue]


def generate_afresh(
    model: nn.Module, text: Tensor, sampling: Sampling, generator: torch.Generator, window: int
) -> Iterator[int]:
    while True:
        text = text[:, -window:]
        with torch.inference_mode():
            log_probabilities, _ = model.predict(text)  # pyright: ignore[reportCallIssue]
        token = sampling.draw(log_probabilities, generator)
        yield int(token)
        text = torch.cat([text, token[:, None].to(text.device)], dim=1)
