"""The numerical settings of a process that trains (performance.md 6, training.md 3.11)."""

from __future__ import annotations

import ctypes
import sys
import warnings

import torch

#: Parameters of glibc's ``mallopt``, and their values here: the largest that it takes, and more than a step frees.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_KEPT_BYTES = 2**28, 2**25


def set_up(*, deterministic: bool, tf32: bool, threads: int) -> torch.device:
    """Fix the settings and return the device; the calling thread is the one that trains.

    Args:
        deterministic: same bits in every repetition.
        tf32: whether matrix products and convolutions may use TF32.
        threads: of the CPU.
    """
    torch.set_num_threads(threads)
    # the weights of an LSTM are views of a run's flat vector; cuDNN copies them at each call and says so once
    warnings.filterwarnings("ignore", message="RNN module weights")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = deterministic
    # as torch.use_deterministic_algorithms does, but without importing the compiler (1.5 s), which is not used here
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    # filling every new tensor costs a kernel each; nothing here reads what it has not written
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    if not torch.cuda.is_available():
        keep_freed_memory()
        return torch.device("cpu")
    device = torch.device("cuda", 0)
    # acting and judging go before the hosts' training, whose streams have the ordinary priority
    torch.cuda.set_stream(torch.cuda.Stream(device, priority=-1))  # type: ignore[no-untyped-call]
    return device


def keep_freed_memory() -> None:
    """Have the C library keep what a step frees for the next one, up to 256 MiB; without glibc do nothing.

    The tensors of stacked runs have some hundred kilobytes. They would go back to the system at each step, and every
    page of the next ones be fetched and cleared anew.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
