"""The CUDA kernels of the first stage, compiled for a CPU, against PyTorch in float64 with the same roundings."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody reads
from torch import Tensor

from worker.envs.morph.network.fused import __path__ as fused_path

HERE = Path(__file__).parent / "emulated"
IMAGES, BLOCKS, INNER = 3, 2, 3
SUMS, FINISHING, FINISHING_GRAFT = 640 + 768 + 48 + 32, 30, 21
#: Root mean square of differences, as a part of the value's: gradients are rounded to bf16 twice on their way. What
#: products read in TF32 has three more bits.
LIMITS = {torch.bfloat16: 0.02, torch.float32: 0.002}
PRECISIONS = pytest.mark.parametrize("dtype", list(LIMITS))


def built(tmp_path: Path, source: str, **defines: bool) -> ctypes.CDLL:
    """Compile kernels with the host compiler."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++, to compile the kernels for a CPU")
    out = tmp_path / f"{source}.so"
    flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", *(f"-D{name}={int(on)}" for name, on in defines.items())]
    place = str(HERE / f"{source}.cpp")
    subprocess.run(["g++", *flags, f"-I{next(iter(fused_path))}", "-o", str(out), place], check=True)
    return ctypes.CDLL(str(out))


def trained(tmp_path: Path, case: Case, *, grows: bool, detach: bool, host: bool = True) -> ctypes.CDLL:
    return built(tmp_path, "stage", GRAFT=grows, DETACH=detach, HOST=host, SINGLE=case.dtype is torch.float32)


def addresses(*tensors: Tensor) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


class Case:
    """Inputs of a stage in a precision, and what its gradients are taken of."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        self.dtype = dtype
        generator = torch.Generator().manual_seed(0)

        def draws(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        self.x = self.laid(draws(IMAGES, 4, 32, 32))
        self.x[:, INNER:] = 0
        norms = [draws(8).abs(), draws(8), draws(8), draws(8), draws(8)]
        self.weight, self.kernel = 0.3 * draws(8, INNER, 3, 3), 0.3 * draws(8, 8, 3, 3)
        self.gain, self.bias, self.gn_weight, self.gn_bias, self.gamma = norms
        self.alpha, self.grad = torch.tensor(0.7), self.laid(draws(IMAGES, 8, 16, 16))
        self.y1 = self.laid(F.conv2d(self.x[:, :INNER].double(), self.weight.double(), padding=1))
        mean, var = self.y1.double().mean((0, 2, 3)), self.y1.double().var((0, 2, 3), unbiased=False)
        self.moments = torch.stack([mean, (var + 1e-5).rsqrt()]).float()

    def laid(self, values: Tensor) -> Tensor:
        """Return values in the precision, channels-last."""
        return values.to(self.dtype).contiguous(memory_format=torch.channels_last)

    def rounded(self, values: Tensor) -> Tensor:
        """Return values as the precision has them; gradients pass."""
        return values + (values.detach().to(self.dtype).double() - values.detach())

    def read(self, values: Tensor) -> Tensor:
        """Return values as products read them; gradients pass."""
        if self.dtype is torch.bfloat16:
            return self.rounded(values)
        shortened = ((values.detach().float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
        return values + (shortened.double() - values.detach())

    @property
    def leaves(self) -> list[Tensor]:
        return [self.weight, self.gain, self.bias, self.kernel, self.gn_weight, self.gn_bias, self.gamma]

    def wanted(self, *, grows: bool, detach: bool) -> list[Tensor]:
        """Return the output, and the gradients of the leaves that have one."""
        weight, gain, bias, kernel, gn_weight, gn_bias, gamma = leaves = [
            leaf.double().requires_grad_() for leaf in self.leaves
        ]
        y1 = self.rounded(F.conv2d(self.x[:, :INNER].double(), weight, padding=1))
        z = h = self.rounded(F.relu(F.batch_norm(y1, None, None, gain, bias, True, 0.1)))
        if grows:
            read = self.read(z.detach() if detach else z)
            y2 = self.rounded(F.conv2d(read, self.read(kernel), padding=1))
            grown = F.relu(F.group_norm(y2, 1, gn_weight, gn_bias))
            h = self.rounded(z + self.alpha.double() * gamma[:, None, None] * grown)
        out = F.max_pool2d(h, 2)
        used = leaves if grows else leaves[:3]
        return [out.detach(), *torch.autograd.grad((out * self.grad.double()).sum(), used)]

    def found(self, lib: ctypes.CDLL, *, grows: bool, blocks: int = FINISHING) -> list[Tensor]:
        """Return the same from the kernels; ``blocks`` add the sums up."""
        graft = (self.gn_weight, self.gn_bias, self.gamma, self.alpha)
        y2, gn_moments = torch.empty_like(self.y1), torch.zeros(IMAGES, 2)
        out, picks = torch.empty_like(self.grad), torch.zeros(IMAGES * 256 * 8, dtype=torch.uint8)
        norm = (self.moments, self.gain, self.bias, self.kernel)
        lib.run_forward(BLOCKS, addresses(self.y1, *norm, *graft, y2, gn_moments, out, picks), IMAGES)
        sums = torch.full((BLOCKS, SUMS), float("nan"))
        read = (self.grad, picks, self.x, self.y1, y2, *norm, gn_moments, *graft, sums)
        lib.run_backward(BLOCKS, addresses(*read), IMAGES)
        weight, norms = torch.full((8, INNER, 3, 3), 7.0), torch.full((2, 8), 7.0)
        kernel, of_graft = torch.zeros(8, 8, 3, 3), torch.zeros(3, 8)
        given = (sums, self.moments, self.gain, *graft, weight, norms, kernel, of_graft)
        lib.run_finish.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_float]
        lib.run_finish(blocks, addresses(*given), BLOCKS, INNER, float(IMAGES * 1024))
        return [out, weight, norms[1], norms[0], *((kernel, *of_graft) if grows else ())]


def errors(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[float]:
    return [
        float((a.double() - b).square().mean().sqrt() / b.square().mean().sqrt())
        for a, b in zip(found, wanted, strict=True)
    ]


@PRECISIONS
@pytest.mark.parametrize(("grows", "detach"), [(False, False), (True, False), (True, True)])
def test_the_stage_equals_its_plain_modules(tmp_path: Path, dtype: torch.dtype, grows: bool, detach: bool) -> None:
    case = Case(dtype)
    lib = trained(tmp_path, case, grows=grows, detach=detach)
    found = errors(case.found(lib, grows=grows), case.wanted(grows=grows, detach=detach))
    assert found[0] < 1e-3
    assert max(found) < LIMITS[dtype], found


@PRECISIONS
def test_a_graft_alone_takes_the_gradients_that_it_takes_with_the_host(tmp_path: Path, dtype: torch.dtype) -> None:
    case = Case(dtype)
    lib = trained(tmp_path, case, grows=True, detach=True, host=False)
    out, weight, gain, bias, *graft = case.found(lib, grows=True, blocks=FINISHING_GRAFT)
    wanted = case.wanted(grows=True, detach=True)
    found = errors([out, *graft], [wanted[0], *wanted[4:]])
    assert found[0] < 1e-3
    assert max(found) < LIMITS[dtype], found
    for untouched in (weight, gain, bias):
        assert (untouched == 7.0).all()


@PRECISIONS
def test_nan_reaches_what_it_reaches_in_the_plain_modules_and_no_other_image(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    case = Case(dtype)
    lib = trained(tmp_path, case, grows=True, detach=False)
    clean, *_ = case.found(lib, grows=True)
    case.y1[1, 0, 5, 5] = float("nan")
    out, *_ = case.found(lib, grows=True)
    assert out[1].isnan().all()  # one group: the statistics of the image are NaN
    assert torch.equal(out[0], clean[0])
    assert torch.equal(out[2], clean[2])


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_validation_equals_the_plain_modules(tmp_path: Path, grows: bool, plain: bool) -> None:
    if not (grows or plain):
        return
    case, lib = Case(), built(tmp_path, "stage_eval", GRAFT=grows)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(IMAGES, 4, 32, 32, generator=generator).contiguous(memory_format=torch.channels_last)
    mean, variance = torch.randn(8, generator=generator), torch.rand(8, generator=generator)
    graft = (case.kernel, case.gn_weight, case.gn_bias, case.gamma, case.alpha)
    out = torch.full((2, IMAGES, 16, 16, 8), float("nan"))
    norm = (mean, variance, case.gain, case.bias)
    lib.run_validate(BLOCKS, addresses(x, case.weight, *norm, *graft, out[0], out[1]), IMAGES, INNER, int(plain))

    own, kernel = case.weight.double(), case.kernel.double()
    y = F.conv2d(x[:, :INNER].double(), own, padding=1)
    z = F.relu(F.batch_norm(y, mean.double(), variance.double(), case.gain.double(), case.bias.double(), False))
    grown = F.group_norm(F.conv2d(z, kernel, padding=1), 1, case.gn_weight.double(), case.gn_bias.double())
    blended = z + case.alpha.double() * case.gamma.double()[:, None, None] * F.relu(grown)
    for wanted, value, found in ((plain, z, out[0]), (grows, blended, out[1])):
        if not wanted:
            assert found.isnan().all()
            continue
        torch.testing.assert_close(found.permute(0, 3, 1, 2).double(), F.max_pool2d(value, 2), rtol=1e-5, atol=1e-5)
