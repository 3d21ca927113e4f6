"""``python -m worker``: run a supervisor, fetch data sets, or check environments and rewards.

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

from pydantic import TypeAdapter, ValidationError

from lockstep.address import BadAddress, BadToken, clean_path, clean_token, clean_url, hidden, proxy_of
from lockstep.logs import LEVELS, configure
from lockstep.spec.text.faults import sentence
from lockstep.text import Name
from worker.supervision.agent import CONFIGURATION, DEVICE_IN_USE, Agent
from worker.supervision.devices import DeviceInUse, NoDevice, bind, host_name
from worker.supervision.folder import unwritable
from worker.supervision.options import Options, within

_PROBE_BYTES = 65_536
_NAME: TypeAdapter[str] = TypeAdapter(Name)


def main() -> int:
    """Run the command named by the first argument."""
    if len(sys.argv) > 1 and sys.argv[1] in ("data", "env", "reward"):
        command = f"worker.commands.{sys.argv[1]}_cli"
        os.execv(sys.executable, [sys.executable, "-m", command, *sys.argv[2:]])  # noqa: S606 - own modules
    return run(sys.argv[1:])


def run(arguments: list[str]) -> int:
    """Run a supervisor with these options; return the exit code."""
    try:
        return serve(parse(arguments))
    except DeviceInUse as error:
        sys.stderr.write(f"error: {error}\n")
        return DEVICE_IN_USE
    except (NoDevice, BadAddress) as error:
        sys.stderr.write(f"error: {error}\n")
        return CONFIGURATION


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the options of a supervisor; environment variables give the defaults.

    Raises:
        BadAddress: a path or a size cannot be used.
    """
    given = _parser().parse_args(arguments)
    given.data_dir = clean_path(given.data_dir, "--data-dir or LOCKSTEP_DATASETS") if given.data_dir else None
    given.work_dir = clean_path(given.work_dir, "--work-dir or LOCKSTEP_SPOOL_DIR")
    given.token_file = clean_path(given.token_file, "--token-file") if given.token_file else None
    spool = str(given.spool_bytes)
    if not spool.isdecimal():
        raise BadAddress(f"--spool-bytes or LOCKSTEP_SPOOL_MAX_BYTES: give a whole number of bytes, not {spool!r}")
    given.spool_bytes = int(spool)
    return given


def _parser() -> argparse.ArgumentParser:
    env, parser = os.environ, argparse.ArgumentParser(prog="lockstep worker", description="Train on one device.")
    add = parser.add_argument
    url, told = env.get("LOCKSTEP_URL", "http://127.0.0.1:7480"), "the server; default LOCKSTEP_URL, else this machine"
    add("--api", "--url", metavar="URL", default=url, help=f"{told} (%(default)s)")
    add("--token", default=env.get("LOCKSTEP_TOKEN"), help="worker token; default LOCKSTEP_TOKEN")
    add("--token-file", help="file with the worker token, instead of --token")
    add("--device", default="auto", help="auto, gpu, cpu, or the uid of one (default: %(default)s)")
    add("--name", help="name that people see; default: host and device")
    told = "name of this host; default LOCKSTEP_HOST_NAME, else the system's"
    add("--host", default=env.get("LOCKSTEP_HOST_NAME"), help=told)
    told = "processor threads for training on a CPU (default: %(default)s)"
    add("--threads", type=within(1, 1024), default=1, help=told)
    told = "folder of data sets; default LOCKSTEP_DATASETS; digits and Gymnasium need none"
    add("--data-dir", default=env.get("LOCKSTEP_DATASETS"), help=told)
    work_dir = env.get("LOCKSTEP_SPOOL_DIR") or Path(tempfile.gettempdir()) / f"lockstep-worker-{os.getuid()}"
    add("--work-dir", default=work_dir, help="folder for what waits to be sent, and checkpoints (default: %(default)s)")
    told = "most bytes of what waits to be sent (default: %(default)s)"
    add("--spool-bytes", default=env.get("LOCKSTEP_SPOOL_MAX_BYTES", 2**28), help=told)
    add("--trainer-cmd", help="program to train with instead of the built-in trainer")
    add("--until-input-ends", action="store_true", help="stop after the running round when standard input ends")
    add("--once", action="store_true", help="end when there is nothing to do")
    return parser


def token_of(options: argparse.Namespace) -> str | None:
    """Return the worker token as given or as a file has it, None without one.

    Raises:
        BadAddress: the file cannot be read, or a header could not carry what stands in it.
    """
    if options.token_file is None:
        return clean_token(options.token, "--token or LOCKSTEP_TOKEN")
    field = f"--token-file {options.token_file}"
    try:
        token = clean_token(options.token_file.read_text(encoding="utf-8"), field)
    except OSError as error:
        raise BadAddress(f"{field}: it cannot be read ({error.strerror}); correct the path or its rights") from error
    except UnicodeDecodeError as error:
        raise BadToken(f"{field}: the file holds no text; write the worker token into it") from error
    if token is None:
        raise BadToken(f"{field}: the file is empty; write the worker token into it")
    return token


def options_of(given: argparse.Namespace) -> Options:
    """Return what the operator chose, checked and with its folder made.

    Raises:
        BadAddress: an option or a variable of the environment cannot be used; names it and the remedy.
    """
    url = clean_url(given.api, "--api or LOCKSTEP_URL")
    proxy_of(url)
    return Options(
        url=url,
        token=token_of(given),
        name=_line(given.name, "--name"),
        threads=given.threads,
        data_dir=given.data_dir,
        work_dir=_writable(given.work_dir),
        spool_bytes=given.spool_bytes,
        trainer=shlex.split(given.trainer_cmd) if given.trainer_cmd else None,
        once=given.once,
        host=_line(given.host, "--host or LOCKSTEP_HOST_NAME"),
    )


def _line(given: str | None, field: str) -> str | None:
    """Return a name as given, None without one.

    Raises:
        BadAddress: the server would not take it.
    """
    if not given:
        return None
    try:
        return _NAME.validate_python(given)
    except ValidationError as error:
        raise BadAddress("{}; {}".format(*sentence(field, error.errors()))) from error


def _writable(folder: Path) -> Path:
    """Return a folder that is there and takes files: rights and room are known only when something was written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder


def serve(given: argparse.Namespace) -> int:
    """Bind the device and serve until drained; return the exit code.

    Raises:
        BadAddress: a setting cannot be used.
        DeviceInUse: another process holds the device.
        NoDevice: there is none of that name.
    """
    level = os.environ.get("LOCKSTEP_LOG_LEVEL", "info").lower()
    if level not in LEVELS:
        raise BadAddress(f"LOCKSTEP_LOG_LEVEL: use one of {', '.join(LEVELS)}, not {level!r}")
    configure(level)
    options = options_of(given)
    bound = bind(given.device, host=options.host or host_name(), threads=given.threads)
    agent = Agent(options, bound)
    listen(agent, until_input_ends=given.until_input_ends)
    sys.stdout.write(f"worker on {bound.device.uid} ({bound.device.device_class}) for {hidden(options.url)}\n")
    sys.stdout.flush()
    return agent.run()


def listen(agent: Agent, *, until_input_ends: bool) -> None:
    """Drain at SIGTERM and SIGINT, and at the end of the input if that is wanted."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # in a thread of its own: a handler that interrupts a wait would need the lock which that wait holds
        signal.signal(number, lambda *_: threading.Thread(target=agent.stop).start())
    if until_input_ends:
        threading.Thread(target=_drain_at_end_of_input, args=(agent,), daemon=True).start()


def _drain_at_end_of_input(agent: Agent) -> None:
    """Drain once whoever started this process has gone, and with it the reader of what is printed here."""
    while os.read(0, _PROBE_BYTES):
        pass
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    agent.stop()


if __name__ == "__main__":
    sys.exit(main())
