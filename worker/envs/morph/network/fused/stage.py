"""The first stage of a small host as three passes over memory instead of a dozen (``stage.cu``).

Block of 8 channels on 32 x 32 pixels, one 3 x 3 graft with GroupNorm behind it or none, 2x2 maxima: the shape in which
hosts of ``cifar`` tasks begin, and where they spend most of their time. Training in bf16 or TF32, and validation in
float32 (``stage_eval.cu``); other shapes and precisions take ``step``, and so do these where NVRTC cannot be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from worker.envs.morph.kernels import StagedGraft, Tap
from worker.envs.morph.network.fused import launch
from worker.envs.morph.network.fused.nvrtc import Kernel, is_found, load

CHANNELS, EDGE = 8, 32
_THREADS = 256
#: Blocks of threads: each leaves sums to add up, and other hosts fill the rest of a card. The same number on every
#: card, for the order of a sum decides its bits.
_BLOCKS = 132
#: Floats of a block's sums, and blocks of threads that add them up, all or the graft's, as ``stage.cu`` has them.
_SUMS, _FINISHING, _FINISHING_GRAFT = 640 + 768 + 48 + 32, 30, 21
#: Bytes of shared memory: of a framed image by whether it is in float32 (``half.cuh``, ``single.cuh``), of one of the
#: host's images, and for sums.
_FRAMED, _IMAGE, _SCRATCH = {False: 34 * 34 * 16, True: 2 * (34 * 34 + 1) * 16}, 34 * 34 * 16, (64 + 256 + 2 * 32) * 16
_SOURCE, _EVAL_SOURCE = (Path(__file__).with_name(name) for name in ("stage.cu", "stage_eval.cu"))
#: Bytes of shared memory of ``stage_eval.cu``: twelve channels with rows of zeros, weights, scales, sums.
_EVAL_SHARED = (12 * 34 * 32 + (4 + 8) * 9 * 8 + 16 + 16) * 4


def fits(x: Tensor, weight: Tensor) -> bool:
    """Say whether a first block with ``weight`` [O, C, k, k] over images x [B, C', H, W] is of this shape."""
    return _is_first(x, weight) and (x.dtype == torch.bfloat16 or _is_tf32(x))


def stage(x: Tensor, weight: Tensor, norm: Any, graft: StagedGraft | None, *, update: bool) -> Tensor:
    """Return pool(blend(ReLU(BN(conv(x))))), [B, 8, 16, 16], where ``fits``; running statistics move if ``update``."""
    return _staged(x, weight, norm, graft, update)[0]


def stage_tapped(x: Tensor, weight: Tensor, norm: Any, *, update: bool) -> tuple[Tensor, Tap]:
    """Return what ``stage`` does without a graft, and what a graft beside it reads."""
    out, y, moments = _staged(x, weight, norm, None, update)
    return out, Tap(y, moments, norm)


def stage_beside(tap: Tap, graft: StagedGraft) -> Tensor:
    """Return pool(blend(ReLU(BN(y)))), [B, 8, 16, 16]; only the graft takes gradients."""
    norm = (tap.norm.weight.detach(), tap.norm.bias.detach())
    found: Tensor = _Beside.apply(tap.y, tap.moments, *norm, *_tensors(graft))  # type: ignore[no-untyped-call]
    return found


def _is_first(x: Tensor, weight: Tensor) -> bool:
    images = x.shape[1:] == (4, EDGE, EDGE) and not x.requires_grad and x.is_cuda
    return images and weight.shape[0] == CHANNELS and weight.shape[2] == 3 and is_found()


def _is_tf32(x: Tensor) -> bool:
    return x.dtype == torch.float32 and torch.backends.cudnn.allow_tf32 and not torch.is_autocast_enabled("cuda")


def _staged(
    x: Tensor, weight: Tensor, norm: Any, graft: StagedGraft | None, update: bool
) -> tuple[Tensor, Tensor, Tensor]:
    block = (weight, norm.weight, norm.bias, norm.running_mean, norm.running_var, update)
    grown = (None,) * 6 if graft is None else (*_tensors(graft), graft.detach)
    found: tuple[Tensor, Tensor, Tensor] = _Stage.apply(x, *block, *grown)  # type: ignore[no-untyped-call]
    return found


def _tensors(graft: StagedGraft) -> tuple[Tensor, ...]:
    return graft.weight, graft.norm.weight, graft.norm.bias, graft.gamma, graft.alpha


class _Passed(NamedTuple):
    """What a forward pass leaves for the one back.

    Attributes:
        y1: [B, 8, 32, 32] behind the block's convolution.
        moments: [2, 8] of its channels.
        gain, bias: [8] of its norm.
        y2: behind the graft's convolution.
        gn_moments: [B, 2] of its images.
        picks: which of four pixels was the largest, as a bit.
        grown: convolution [8, 8, 3, 3], norm's weight and bias, gamma [8] and alpha of the graft; without one any.
    """

    y1: Tensor
    moments: Tensor
    gain: Tensor
    bias: Tensor
    y2: Tensor
    gn_moments: Tensor
    picks: Tensor
    grown: tuple[Tensor, ...]

    def saved(self) -> tuple[Tensor, ...]:
        """Return all of it for ``save_for_backward``."""
        return *self[:-1], *self.grown

    @classmethod
    def of(cls, saved: Sequence[Tensor]) -> _Passed:
        """Return what ``saved`` gave."""
        y1, moments, gain, bias, y2, gn_moments, picks, *grown = saved
        return cls(y1, moments, gain, bias, y2, gn_moments, picks, tuple(grown))


def _forward(
    y1: Tensor, norm: tuple[Tensor, Tensor, Tensor], grown: tuple[Tensor, ...], kernel: Kernel
) -> tuple[Tensor, _Passed]:
    """Return the stage's output; ``norm``: moments, gain and bias; ``grown`` is empty without a graft."""
    images, (_, gain, _) = y1.shape[0], norm
    y2 = torch.empty_like(y1) if grown else y1
    # a pointer that the variant does not follow may be any
    grown = grown or (gain,) * 5
    gn_moments = torch.empty(images, 2, device=y1.device)
    out = torch.empty_like(y1[:, :, ::2, ::2], memory_format=torch.channels_last)
    picks = torch.empty(out.numel(), device=y1.device, dtype=torch.uint8)
    given: list[Tensor | int] = [y1, *norm, *grown, y2, gn_moments, out, picks, images]
    kernel.launch(min(images, 2 * _BLOCKS), _THREADS, given)
    return out, _Passed(y1, *norm, y2, gn_moments, picks, grown)


def _sums(grad: Tensor, x: Tensor, passed: _Passed, kernel: Kernel) -> Tensor:
    """Return what every block of threads adds up in the pass back."""
    images = x.shape[0]
    weight, *others = passed.grown
    blocks = min(images, _BLOCKS)
    sums = torch.empty(blocks, _SUMS, device=x.device)
    norm = (passed.moments, passed.gain, passed.bias)
    given = (launch.last(grad), passed.picks, x, passed.y1, passed.y2, *norm, weight, passed.gn_moments, *others)
    kernel.launch(blocks, _THREADS, (*given, sums, images))
    return sums


class _Stage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        mean, variance, update, *grown, detach = rest
        ctx.grows = grown[0] is not None
        x = launch.last(x)
        y1, moments = launch.conv_moments(x, weight, (mean, variance), update=update)
        ctx.kernels = _kernels(ctx.grows, bool(detach), True, x.dtype == torch.float32, x.device.index)
        graft = tuple(grown) if ctx.grows else ()
        out, passed = _forward(y1, (moments, gain, bias), graft, ctx.kernels["forward"])
        ctx.save_for_backward(x, *passed.saved())
        ctx.inner = weight.shape[1]
        ctx.mark_non_differentiable(y1, moments)
        ctx.set_materialize_grads(False)  # zeros for what takes no gradient would be written and not read
        return out, y1, moments

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        passed = _Passed.of(saved)
        sums = _sums(grads[0], x, passed, ctx.kernels["backward"])
        weight, norm, kernel, graft = _finished(sums, passed, ctx.inner, ctx.kernels["finish"], _FINISHING)
        own = (None, weight, norm[1], norm[0], None, None, None)
        return (*own, kernel, *graft, None, None) if ctx.grows else (*own, *(None,) * 6)


class _Beside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y1: Tensor, moments: Tensor, gain: Tensor, bias: Tensor, *grown: Tensor) -> Tensor:
        ctx.kernels = _kernels(True, True, False, y1.dtype == torch.float32, y1.device.index)
        out, passed = _forward(y1, (moments, gain, bias), grown, ctx.kernels["forward"])
        ctx.save_for_backward(*passed.saved())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        passed = _Passed.of(ctx.saved_tensors)
        sums = _sums(grads[0], passed.y1, passed, ctx.kernels["backward"])
        _, _, kernel, graft = _finished(sums, passed, CHANNELS, ctx.kernels["finish"], _FINISHING_GRAFT)
        return None, None, None, None, kernel, *graft, None


def _finished(sums: Tensor, passed: _Passed, inner: int, kernel: Kernel, programs: int) -> tuple[Tensor, ...]:
    """Return the gradients of the block's weight and norm [2, 8], of the graft's weight, of its norm and gamma [3, 8].

    Args:
        sums: of every block of threads.
        passed: what the forward pass left.
        inner: real channels of the images.
        kernel: what adds up.
        programs: blocks of threads that do so.
    """
    device, images = sums.device, passed.y1.shape[0]
    found = [torch.empty(shape, device=device) for shape in ((CHANNELS, inner, 3, 3), (2, CHANNELS), (3, CHANNELS))]
    to_weight, to_norm, to_graft = found
    to_kernel = torch.empty(CHANNELS, CHANNELS, 3, 3, device=device)
    given = (sums, passed.moments, passed.gain, *passed.grown[1:], to_weight, to_norm, to_kernel, to_graft)
    kernel.launch(programs, _THREADS, (*given, sums.shape[0], inner, float(images * EDGE * EDGE)))
    return to_weight, to_norm, to_kernel, to_graft


def fits_eval(x: Tensor, weight: Tensor) -> bool:
    """Say whether ``stage_eval`` takes a first block with ``weight`` [O, C, k, k] over images x [B, C', H, W]."""
    return _is_first(x, weight) and x.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")


@torch.no_grad()
def stage_eval(x: Tensor, weight: Tensor, norm: Any, graft: StagedGraft | None, *, plain: bool) -> Tensor:
    """Return pool(ReLU(BN(conv(x)))) by running statistics in float32, and behind it the same blended with a graft.

    Args:
        x: [B, 4, 32, 32], where ``fits_eval``.
        weight: [8, C, 3, 3].
        norm: of the block.
        graft: None for the first alone.
        plain: whether the first is wanted too.
    """
    x = launch.last(x)
    images, rows = x.shape[0], int(plain or graft is None) + int(graft is not None)
    shape = (rows * images, CHANNELS, EDGE // 2, EDGE // 2)
    out = torch.empty(shape, device=x.device, memory_format=torch.channels_last)
    block = (weight, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    grown = (norm.bias,) * 5 if graft is None else _tensors(graft)
    given = (x, *block, *grown, out, out[-images:], images, weight.shape[1], int(rows == 2 or graft is None))
    _eval_kernel(graft is not None, x.device.index).launch(min(images, 2 * _BLOCKS), _THREADS, given)
    return out


@lru_cache(maxsize=64)
def _eval_kernel(grows: bool, device: int) -> Kernel:
    with torch.cuda.device(device):
        return load(_EVAL_SOURCE, (f"GRAFT={int(grows)}",), {"validate": _EVAL_SHARED})["validate"]


@lru_cache(maxsize=64)
def _kernels(grows: bool, detach: bool, host: bool, single: bool, device: int) -> dict[str, Kernel]:
    """Return the kernels of a variant; see ``stage.cu``."""
    framed = _FRAMED[single]
    shared = {"forward": framed + _SCRATCH if grows else 0, "backward": _IMAGE + 2 * framed + _SCRATCH, "finish": 0}
    variant = {"GRAFT": grows, "DETACH": detach, "HOST": host, "SINGLE": single}
    with torch.cuda.device(device):
        return load(_SOURCE, [f"{name}={int(on)}" for name, on in variant.items()], shared)
