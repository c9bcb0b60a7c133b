"""Momentum, orthogonalised (Muon): every direction of a matrix moves by the same amount.

PyTorch's own Muon always computes in bfloat16, one matrix at a time; many CPUs cannot, and small models
wait for the launches. Here matrices of one shape are taken together, in float32 on a CPU. Of matrices that
are shared out among processes all gather the momentum, and each steps with its share.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from ..shards import gathered, shared_like

# of the odd quintic whose iteration drives singular values towards one (Jordan et al. 2024)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class OrthogonalMomentum(torch.optim.Optimizer):
    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float, weight_decay: float):
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            alike = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike[matrix.shape].append(matrix)
            for matrices in alike.values():
                self.step_together(matrices, **{name: group[name] for name in ("lr", "momentum", "weight_decay")})

    def step_together(self, matrices: list[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        looked_ahead = torch.stack([gathered(self.look_ahead(matrix, momentum)) for matrix in matrices])
        rows, columns = matrices[0].shape
        size = max(1, rows / columns) ** 0.5
        for matrix, update in zip(matrices, orthogonalise(looked_ahead), strict=True):
            matrix.mul_(1 - lr * weight_decay).add_(shared_like(update, matrix), alpha=-lr * size)

    def look_ahead(self, matrix: Tensor, momentum: float) -> Tensor:
        """Nesterov's momentum: the gradient, and where the velocity would take it."""
        state = self.state[matrix]
        if not state:
            state["velocity"] = torch.zeros_like(matrix)
        gradient, velocity = matrix.grad, state["velocity"]
        assert gradient is not None
        velocity.lerp_(gradient, 1 - momentum)
        return gradient.lerp(velocity, momentum)


def orthogonalise(matrices: Tensor) -> Tensor:
    """`n rows columns` -> roughly U Vᵀ of each one's singular value decomposition U S Vᵀ"""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)
