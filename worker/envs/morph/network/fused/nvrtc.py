"""CUDA C++ compiled at run time by NVRTC, which every CUDA build of PyTorch brings, and launched on PyTorch's stream.

For what Triton cannot say: shared memory that threads address as they like. A kernel takes tensors, ints and floats;
a launch may be captured in a graph, a first use may not, for it compiles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CompileError(RuntimeError):
    """NVRTC refused a source; the message holds its log."""


class Kernel:
    """A function of a loaded module.

    Args:
        function: its handle.
        shared: bytes of dynamic shared memory of a launch.
    """

    def __init__(self, function: ctypes.c_void_p, shared: int) -> None:
        self._function, self._shared = function, shared
        if shared > 48 << 10:
            _driver("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared)

    def launch(self, blocks: int, threads: int, args: Sequence[Tensor | int | float]) -> None:
        """Run on the current stream; tensors are passed as pointers, floats as float32."""
        values = [_value(arg) for arg in args]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _driver("cuLaunchKernel", self._function, blocks, 1, 1, threads, 1, 1, self._shared, stream, places, None)


def load(source: Path, defines: Sequence[str], shared: dict[str, int]) -> dict[str, Kernel]:
    """Compile a source for the current device and return its kernels.

    Args:
        source: file of CUDA C++; what it includes are ``.cuh`` files beside it.
        defines: ``NAME=VALUE``.
        shared: bytes of dynamic shared memory by name of a kernel.

    Raises:
        CompileError: the source does not compile.
    """
    major, minor = torch.cuda.get_device_capability()
    options = [f"--gpu-architecture=sm_{major}{minor}", "--std=c++17", *(f"-D{item}" for item in defines)]
    module = ctypes.c_void_p()
    _driver("cuModuleLoadData", ctypes.byref(module), _compile(source, options))
    kernels = {}
    for name, size in shared.items():
        function = ctypes.c_void_p()
        _driver("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        kernels[name] = Kernel(function, size)
    return kernels


def _compile(source: Path, options: Sequence[str]) -> bytes:
    lib, program = _nvrtc(), ctypes.c_void_p()
    headers = sorted(source.parent.glob("*.cuh"))
    texts, names = _texts([path.read_bytes() for path in headers]), _texts([path.name.encode() for path in headers])
    given = (source.read_bytes(), source.name.encode(), len(headers), texts, names)
    if lib.nvrtcCreateProgram(ctypes.byref(program), *given):
        raise CompileError("NVRTC could not begin a program")
    failed = lib.nvrtcCompileProgram(program, len(options), _texts([option.encode() for option in options]))
    read = ("nvrtcGetProgramLogSize", "nvrtcGetProgramLog") if failed else ("nvrtcGetCUBINSize", "nvrtcGetCUBIN")
    size = ctypes.c_size_t()
    getattr(lib, read[0])(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(lib, read[1])(program, buffer)
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise CompileError(f"NVRTC: {buffer.value.decode(errors='replace')}; choose engine.path captured")
    return buffer.raw


def _texts(values: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(values))(*values)


@lru_cache(maxsize=1)
def is_found() -> bool:
    """Say whether NVRTC is here."""
    try:
        _nvrtc()
    except CompileError:
        return False
    return True


@lru_cache(maxsize=1)
def _nvrtc() -> ctypes.CDLL:
    """Return NVRTC, which PyTorch has loaded or brings along."""
    version = str(torch.version.cuda).split(".")[0]
    beside = Path(torch.__file__).parent.parent / "nvidia"
    names = [f"libnvrtc.so.{version}", *map(str, sorted(beside.glob(f"**/libnvrtc.so.{version}*")))]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CompileError(f"{names[0]} was not found beside PyTorch or on the library path; choose engine.path captured")


@lru_cache(maxsize=1)
def _cuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _driver(name: str, *args: object) -> None:
    code = getattr(_cuda(), name)(*args)
    if code:
        text = ctypes.c_char_p()
        _cuda().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()}")


def _value(arg: Tensor | int | float) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_float:
    if isinstance(arg, Tensor):
        return ctypes.c_void_p(arg.data_ptr())
    return ctypes.c_int(arg) if isinstance(arg, int) else ctypes.c_float(arg)
