"""The first stage of a small host as three passes over memory instead of a dozen (``stage.cu``).

Block of 8 channels on 32 x 32 pixels, one 3 x 3 graft with GroupNorm behind it or none, 2x2 maxima, in bf16: the shape
in which hosts of ``cifar`` tasks begin, and where they spend most of their time. Other shapes take ``step``.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worker.envs.morph.kernels import StagedGraft
from worker.envs.morph.network.fused import launch
from worker.envs.morph.network.fused.nvrtc import Kernel, load

CHANNELS, EDGE = 8, 32
_THREADS = 256
#: Blocks of threads: each leaves sums to add up, and other hosts fill the rest of a card. The same number on every
#: card, for the order of a sum decides its bits.
_BLOCKS = 132
#: Floats of a block's sums, and blocks of threads that add them up, as ``stage.cu`` has them.
_SUMS, _FINISHING = 640 + 768 + 48 + 32, 30
_FRAMED, _SCRATCH = 34 * 34 * 16, 1024
_SOURCE = Path(__file__).with_name("stage.cu")


def fits(x: Tensor, weight: Tensor) -> bool:
    """Say whether a first block with ``weight`` [O, C, k, k] over images x [B, C', H, W] is of this shape."""
    images = x.shape[1:] == (4, EDGE, EDGE) and not x.requires_grad and x.dtype == torch.bfloat16
    return images and weight.shape[0] == CHANNELS and weight.shape[2] == 3 and x.is_cuda


def stage(x: Tensor, weight: Tensor, norm: Any, graft: StagedGraft | None, *, update: bool) -> Tensor:
    """Return pool(blend(ReLU(BN(conv(x))))), [B, 8, 16, 16], where ``fits``; running statistics move if ``update``."""
    block = (weight, norm.weight, norm.bias, norm.running_mean, norm.running_var, update)
    grown = (None,) * 6 if graft is None else (graft.weight, graft.norm.weight, graft.norm.bias, *graft[2:])
    found: Tensor = _Stage.apply(x, *block, *grown)  # type: ignore[no-untyped-call]
    return found


class _Stage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        mean, variance, update, kernel, gn_weight, gn_bias, gamma, alpha, detach = rest
        grows = kernel is not None
        x = launch.last(x)
        y1, moments = launch.conv_moments(x, weight, (mean, variance), update=update)
        images = x.shape[0]
        # a pointer that the variant does not follow may be any
        grown = (kernel, gn_weight, gn_bias, gamma, alpha) if grows else (weight, gain, gain, gain, gain)
        y2 = torch.empty_like(y1) if grows else y1
        gn_moments = torch.empty(images, 2, device=x.device)
        out = torch.empty_like(y1[:, :, ::2, ::2], memory_format=torch.channels_last)
        picks = torch.empty(out.numel(), device=x.device, dtype=torch.uint8)
        kernels = _kernels(grows, bool(detach), x.device.index)
        given = (y1, moments, gain, bias, *grown, y2, gn_moments, out, picks, images)
        kernels["forward"].launch(min(images, 2 * _BLOCKS), _THREADS, given)
        ctx.save_for_backward(x, y1, y2, moments, gain, bias, gn_moments, picks, *grown)
        ctx.grows, ctx.kernels, ctx.inner = grows, kernels, weight.shape[1]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, y1, y2, moments, gain, bias, gn_moments, picks, *grown = ctx.saved_tensors
        kernel, gn_weight, gn_bias, gamma, alpha = grown
        images, inner, device = x.shape[0], ctx.inner, x.device
        blocks = min(images, _BLOCKS)
        sums = torch.empty(blocks, _SUMS, device=device)
        given = (launch.last(grads[0]), picks, x, y1, y2, moments, gain, bias, kernel, gn_moments, *grown[1:], sums)
        ctx.kernels["backward"].launch(blocks, _THREADS, (*given, images))
        to_weight, to_norm = torch.empty(CHANNELS, inner, 3, 3, device=device), torch.empty(2, CHANNELS, device=device)
        to_kernel = torch.empty_like(kernel, memory_format=torch.contiguous_format) if ctx.grows else to_weight
        to_graft = torch.empty(3, CHANNELS, device=device)
        given = (sums, moments, gain, gn_weight, gn_bias, gamma, alpha, to_weight, to_norm, to_kernel, to_graft)
        ctx.kernels["finish"].launch(_FINISHING, _THREADS, (*given, blocks, inner, float(images * EDGE * EDGE)))
        own = (None, to_weight, to_norm[1], to_norm[0], None, None, None)
        return (*own, to_kernel, *to_graft, None, None) if ctx.grows else (*own, *(None,) * 6)


@lru_cache(maxsize=64)
def _kernels(grows: bool, detach: bool, device: int) -> dict[str, Kernel]:
    shared = {"forward": _FRAMED + _SCRATCH if grows else 0, "finish": 0}
    shared["backward"] = 3 * _FRAMED + _SCRATCH
    with torch.cuda.device(device):
        return load(_SOURCE, (f"GRAFT={int(grows)}", f"DETACH={int(detach)}"), shared)
