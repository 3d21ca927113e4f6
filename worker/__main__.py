"""``python -m worker``: run a supervisor, fetch data sets, or check environments.

SIGTERM drains: the assignment stops at its next round border, gives its block back, and the worker retires.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
import threading
from pathlib import Path

from lockstep.address import BadAddress, BadToken, clean_token, clean_url
from lockstep.logs import configure
from worker.agent import CONFIGURATION, DEVICE_IN_USE, TOKEN_REFUSED, Agent
from worker.devices import DeviceInUse, NoDevice, bind, host_name
from worker.options import Options


def main() -> int:
    """Run the command named by the first argument."""
    commands = {"data": "worker.data_cli", "env": "worker.env_cli"}
    if len(sys.argv) > 1 and sys.argv[1] in commands:
        os.execv(sys.executable, [sys.executable, "-m", commands[sys.argv[1]], *sys.argv[2:]])  # noqa: S606 - own modules
    return serve(parse(sys.argv[1:]))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the options of a supervisor; environment variables give the defaults."""
    env = os.environ
    parser = argparse.ArgumentParser(prog="lockstep worker", description="Train blocks on one device.")
    parser.add_argument("--api", default=env.get("LOCKSTEP_URL", "http://127.0.0.1:7480"), help="control plane")
    parser.add_argument("--token", default=env.get("LOCKSTEP_TOKEN"), help="worker token")
    parser.add_argument("--token-file", type=Path, help="file with the worker token")
    parser.add_argument("--device", default="auto", help="auto, cpu, or the uid of a GPU, MIG slice or CPU slot")
    parser.add_argument("--name", help="display name")
    parser.add_argument("--host", default=env.get("LOCKSTEP_HOST_NAME"), help="name of this host")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of a CPU slot")
    parser.add_argument("--data-dir", type=Path, default=_path(env.get("LOCKSTEP_DATASETS")))
    default_spool = Path(tempfile.gettempdir()) / f"lockstep-worker-{os.getuid()}"
    parser.add_argument("--work-dir", type=Path, default=_path(env.get("LOCKSTEP_SPOOL_DIR")) or default_spool)
    parser.add_argument("--spool-bytes", type=int, default=int(env.get("LOCKSTEP_SPOOL_MAX_BYTES", 2**28)))
    parser.add_argument("--trainer-cmd", help="another trainer that speaks the frame protocol")
    parser.add_argument("--once", action="store_true", help="retire when there is nothing to do")
    return parser.parse_args(arguments)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def token_of(options: argparse.Namespace) -> str | None:
    """Return the worker token as given or as a file has it, None without one."""
    if options.token_file is None:
        return clean_token(options.token, "--token or LOCKSTEP_TOKEN")
    try:
        token = clean_token(options.token_file.read_text(), f"--token-file {options.token_file}")
    except (OSError, UnicodeDecodeError) as error:
        raise BadAddress(f"--token-file {options.token_file}: it cannot be read ({error})") from error
    if token is None:
        raise BadToken(f"--token-file {options.token_file}: the file is empty; write the worker token into it")
    return token


def serve(options: argparse.Namespace) -> int:
    """Bind the device and serve until drained; return the exit code."""
    configure(os.environ.get("LOCKSTEP_LOG_LEVEL", "info"))
    try:
        url, token = clean_url(options.api, "--api"), token_of(options)
        bound = bind(options.device, host=options.host or host_name(), threads=options.threads)
    except DeviceInUse as error:
        sys.stderr.write(f"error: {error}\n")
        return DEVICE_IN_USE
    except (NoDevice, BadAddress) as error:
        sys.stderr.write(f"error: {error}\n")
        return TOKEN_REFUSED if isinstance(error, BadToken) else CONFIGURATION
    agent = Agent(
        Options(
            url=url,
            token=token,
            name=options.name,
            threads=options.threads,
            data_dir=options.data_dir,
            work_dir=options.work_dir,
            spool_bytes=options.spool_bytes,
            trainer=shlex.split(options.trainer_cmd) if options.trainer_cmd else None,
            once=options.once,
        ),
        bound,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        # in a thread of its own: a handler that interrupts a wait would need the lock which that wait holds
        signal.signal(number, lambda *_: threading.Thread(target=agent.stop).start())
    sys.stdout.write(f"worker on {bound.device.uid} ({bound.device.device_class}) for {url}\n")
    sys.stdout.flush()
    return agent.run()


if __name__ == "__main__":
    sys.exit(main())
