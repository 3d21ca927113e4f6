"""The numerical settings of a process that trains (performance.md 6, training.md 3.11)."""

from __future__ import annotations

import warnings

import torch


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
        return torch.device("cpu")
    device = torch.device("cuda", 0)
    # acting and judging go before the hosts' training, whose streams have the ordinary priority
    torch.cuda.set_stream(torch.cuda.Stream(device, priority=-1))  # type: ignore[no-untyped-call]
    return device
