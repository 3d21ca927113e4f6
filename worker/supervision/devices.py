"""Devices by identity: discovery, the host lock that keeps a device to one supervisor, health.

A GPU is bound by its UUID (or MIG UUID), never by an ordinal: discovery asks the CUDA runtime in a
subprocess and does not parse device variables. CPU slots are ``cpu:<host>:<n>``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from lockstep.address import clean_path
from lockstep.protocol import Device, Health

_MARGIN_BYTES = 200 * 2**20
_CHECK_SECONDS = 30.0
_MAX_SLOTS = 1024


class DeviceInUse(Exception):  # noqa: N818 - a state of affairs
    """Another supervisor on this host holds the device; names it."""


class NoDevice(Exception):  # noqa: N818 - a state of affairs
    """There is no such device here; says what there is."""


def _lock_folder() -> Path:
    """Return the folder of the locks; whoever makes it, workers of every user write there.

    Raises:
        NoDevice: it cannot be made.
    """
    default = Path(tempfile.gettempdir()) / "lockstep-locks"
    folder = clean_path(os.environ.get("LOCKSTEP_LOCK_DIR") or default, "LOCKSTEP_LOCK_DIR")
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o1777)  # mkdir's own mode is cut by the umask
    except OSError as error:
        told = f"the folder of locks {folder} cannot be made ({error.strerror})"
        raise NoDevice(f"{told}; set LOCKSTEP_LOCK_DIR, one for all workers of this host") from error
    return folder


def _open_for_all(path: Path) -> int:
    """Open a lock file that another user may have made, or make one that every user may open."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)  # with O_CREAT the kernel may refuse another user's file in a folder for all
    descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    os.fchmod(descriptor, 0o666)
    return descriptor


@dataclass
class HostLock:
    """Exclusive lock on a device for the life of this process."""

    path: Path
    descriptor: int

    @staticmethod
    def take(uid: str, directory: Path | None = None) -> HostLock:
        """Take the lock of a device.

        Raises:
            DeviceInUse: when another process holds it.
            NoDevice: the lock cannot be made.
        """
        root = directory or _lock_folder()
        path = root / (uid.replace("/", "_").replace(":", "_") + ".lock")
        try:
            descriptor = _open_for_all(path)
        except OSError as error:
            told = f"the lock {path} of device {uid} cannot be made ({error.strerror})"
            raise NoDevice(f"{told}; correct its rights, or set LOCKSTEP_LOCK_DIR, one for all workers") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 100).decode(errors="replace").strip()
            os.close(descriptor)
            raise DeviceInUse(f"device {uid} is held by a worker on this host ({holder or 'unknown'})") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()}".encode(), 0)
        return HostLock(path, descriptor)

    def release(self) -> None:
        """Give the lock back."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


@dataclass(frozen=True)
class Bound:
    """A device this process holds, with what its child needs in the environment."""

    device: Device
    lock: HostLock
    environment: dict[str, str]


def bind(wanted: str, *, host: str, threads: int) -> Bound:
    """Bind a device: ``auto`` (first free GPU, else a CPU slot), ``cpu`` (first free slot) or a uid.

    Raises:
        DeviceInUse: the named device is held by another process.
        NoDevice: no such device, or its lock cannot be made.
    """
    if wanted in ("auto", "gpu"):
        for gpu in discover_gpus():
            with contextlib.suppress(DeviceInUse):
                return _bind_gpu(gpu)
        if wanted == "gpu":
            raise NoDevice("no free GPU; the CUDA runtime sees none, or all are held by other workers")
    if wanted in ("auto", "cpu"):
        return _bind_slot(host, threads)
    if wanted.startswith("cpu:"):
        return Bound(_cpu_device(wanted, threads), HostLock.take(wanted), _cpu_environment(threads))
    known = discover_gpus()
    for gpu in known:
        if gpu["uid"] == wanted:
            return _bind_gpu(gpu)
    seen = ", ".join(gpu["uid"] for gpu in known) or "none"
    raise NoDevice(f"no device {wanted}; the CUDA runtime sees: {seen}")


def discover_gpus() -> list[dict[str, Any]]:
    """Ask the CUDA runtime in a subprocess which devices there are."""
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    result = subprocess.run(
        [sys.executable, "-m", "worker.capabilities", "devices"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=180,
    )
    if result.returncode != 0:
        raise NoDevice(f"the CUDA runtime could not be asked: {result.stderr.strip()[-500:]}")
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def _bind_gpu(gpu: dict[str, Any]) -> Bound:
    lock = HostLock.take(gpu["uid"])
    device = Device(
        uid=gpu["uid"],
        kind="gpu",
        device_class=f"{gpu['model']} {gpu['memory_bytes'] // 2**30} GiB sm_{gpu['capability']}",
        model=gpu["model"],
        memory_bytes=gpu["memory_bytes"],
        capability=gpu["capability"],
    )
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpu["uid"]}
    return Bound(device, lock, environment)


def _bind_slot(host: str, threads: int) -> Bound:
    for number in range(_MAX_SLOTS):
        uid = f"cpu:{host}:{number}"
        with contextlib.suppress(DeviceInUse):
            return Bound(_cpu_device(uid, threads), HostLock.take(uid), _cpu_environment(threads))
    raise NoDevice(f"all {_MAX_SLOTS} CPU slots of this host are taken")


def _cpu_device(uid: str, threads: int) -> Device:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(
        uid=uid,
        kind="cpu",
        device_class=f"cpu {platform.machine()} {threads} thread" + ("s" if threads != 1 else ""),
        model=platform.processor() or platform.machine(),
        memory_bytes=memory,
    )


def _cpu_environment(threads: int) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def host_name() -> str:
    """Return the name of this host."""
    return socket.gethostname().split(".")[0] or "host"


class GpuMonitor:
    """NVML's view of one device; on a CPU slot everything is well."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._handle: Any = None
        self._baseline = 0
        if device.kind == "gpu":
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(device.uid)
            self._baseline = self._used()

    def _used(self) -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def health(self) -> Health:
        """Return the health of the device; an NVML error is ill health with its text."""
        if self._handle is None:
            return Health()
        try:
            rates = pynvml.nvmlDeviceGetUtilizationRates(self._handle)
            heat = pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)
            return Health(memory_used_bytes=self._used(), utilisation=float(rates.gpu), temperature_c=float(heat))
        except pynvml.NVMLError as error:
            return Health(ok=False, detail=f"NVML: {error}")

    def check_free(self) -> Health:
        """Wait until the device is free again: used memory at most baseline + 200 MB, within 30 s."""
        deadline = time.monotonic() + _CHECK_SECONDS
        while True:
            health = self.health()
            used = health.memory_used_bytes
            if not health.ok or used <= self._baseline + _MARGIN_BYTES:
                return health
            if time.monotonic() > deadline:
                text = f"{used >> 20} MiB in use after the block, {self._baseline >> 20} MiB before any"
                return health.model_copy(update={"ok": False, "detail": text})
            time.sleep(0.5)
