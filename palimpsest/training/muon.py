"""Momentum, orthogonalised (Muon): every direction of a matrix moves by the same amount.

PyTorch's own Muon always computes in bfloat16, one matrix at a time; many CPUs cannot, and small models
wait for the launches. Here matrices of one shape are taken together, in float32 on a CPU. Of matrices that
are shared out among processes all gather the momentum, and each steps with its share.
"""

# pyright: reportPrivateImportUsage=false
from collections import defaultdict
from collections.abc import Iterable, Sequence

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

    def step_together(self, matrices: list[Tensor], lr: float | Tensor, momentum: float, weight_decay: float) -> None:
        looked_ahead = torch.stack([gathered(gradient) for gradient in self.look_ahead(matrices, momentum)])
        rows, columns = matrices[0].shape
        rate = lr * max(1, rows / columns) ** 0.5
        updates = list(map(shared_like, orthogonalise(looked_ahead), matrices))
        if isinstance(rate, Tensor):  # on the device, where nothing reads it as a number
            torch._foreach_mul_(updates, rate)
            rate = 1.0
        torch._foreach_mul_(matrices, 1 - lr * weight_decay)
        torch._foreach_add_(matrices, updates, alpha=-rate)

    def look_ahead(self, matrices: list[Tensor], momentum: float) -> Sequence[Tensor]:
        """Nesterov's momentum: the gradients, and where the velocities would take them."""
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["velocity"] = torch.zeros_like(matrix)
        velocities = [self.state[matrix]["velocity"] for matrix in matrices]
        gradients: list[Tensor] = [matrix.grad for matrix in matrices]  # pyright: ignore[reportAssignmentType]
        torch._foreach_lerp_(velocities, gradients, 1 - momentum)
        ahead = torch._foreach_mul(gradients, 1.0)  # a copy: of shares torch 2.11 can do the next in place alone
        torch._foreach_lerp_(ahead, velocities, momentum)
        return ahead


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
