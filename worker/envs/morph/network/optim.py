"""SGD and AdamW on flat parameters, with clipping, skipping and freezing as tensors.

No Python branch depends on a tensor, so the same lines run eagerly and under capture. A step whose
gradient norm is not finite, or of a frozen network, changes nothing at all: neither weights nor
momenta nor decay (a zero gradient alone would not freeze).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.spec.tasks import Optim
from worker.envs.morph.kernels import Kernels
from worker.envs.morph.network.params import ParamStore

_BETAS = (0.9, 0.95)
_EPS = 1e-8


@dataclass(frozen=True)
class Stepper:
    """One optimiser's constants as device tensors.

    Attributes:
        adam: AdamW if true, else SGD with momentum.
        lr: scalar tensor.
        optim: the settings.
        kernels: fused operations, or None for the plain ones; they have SGD only.
    """

    adam: bool
    lr: Tensor
    optim: Optim
    kernels: Kernels | None = None

    def step(self, store: ParamStore, grad: Tensor, active: Tensor) -> Tensor:
        """Clip ``grad`` [P] to the norm limit and update ``store`` in place.

        Args:
            store: network to update.
            grad: [P] gradient before clipping, ``store.grad``.
            active: scalar bool tensor; False freezes the network.

        Returns:
            Scalar: gradient norm before clipping.
        """
        if self.kernels is not None and not self.adam:
            return self.kernels.sgd(store, active, self.lr, self.optim)
        norm: Tensor = torch.linalg.vector_norm(grad)
        ok = torch.isfinite(norm).logical_and_(active)
        grad = grad * (self.optim.grad_clip / (norm + 1e-6)).clamp_(max=1.0)
        if self.adam:
            self._adamw(store, grad, ok)
        else:
            self._sgd(store, grad, ok)
        return norm

    def _sgd(self, store: ParamStore, grad: Tensor, ok: Tensor) -> None:
        if self.optim.weight_decay:
            grad = grad.add_(store.flat, alpha=self.optim.weight_decay)
        # b <- m b + g; p <- p - lr b (PyTorch's SGD without dampening)
        grad.add_(store.momentum, alpha=self.optim.momentum)
        torch.where(ok, grad, store.momentum, out=store.momentum)
        store.flat.sub_(store.momentum * (self.lr * ok))

    def _adamw(self, store: ParamStore, grad: Tensor, ok: Tensor) -> None:
        beta1, beta2 = _BETAS
        store.steps.add_(ok)
        first = torch.lerp(store.momentum, grad, 1.0 - beta1)
        second = torch.addcmul(store.second * beta2, grad, grad, value=1.0 - beta2)
        torch.where(ok, first, store.momentum, out=store.momentum)
        torch.where(ok, second, store.second, out=store.second)
        lr = self.lr * ok
        if self.optim.weight_decay:
            store.flat.sub_(store.flat * store.decays * (lr * self.optim.weight_decay))
        # Loshchilov & Hutter 2019, alg. 2: p <- p - lr m^ / (sqrt(v^) + eps)
        steps = store.steps.clamp(min=1.0)
        scale = lr / (1.0 - beta1**steps)
        denominator = (store.second / (1.0 - beta2**steps)).sqrt_().add_(_EPS)
        store.flat.sub_(store.momentum / denominator * scale)
