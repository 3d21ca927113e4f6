"""The real supervisor, announcing fixed capabilities, so that a test of processes does not load torch."""

from __future__ import annotations

import signal
import sys
import threading

from worker.__main__ import parse, token_of
from worker.agent import DEVICE_IN_USE, Agent
from worker.devices import DeviceInUse, bind
from worker.options import Options


class LightAgent(Agent):
    """An agent that does not ask the installation what it can do."""

    def _capabilities(self) -> dict[str, dict[str, object]]:
        return {"datasets": {"digits": "f" * 64}, "rewards": {}, "environments": {}, "versions": {}}


def main() -> int:
    given = parse(sys.argv[1:])
    try:
        bound = bind(given.device, host="fieldhost", threads=1)
    except DeviceInUse as error:
        sys.stderr.write(f"error: {error}\n")
        return DEVICE_IN_USE
    trainer = given.trainer_cmd.split()
    options = Options(given.api, token_of(given), None, 1, None, given.work_dir, given.spool_bytes, trainer, given.once)
    agent = LightAgent(options, bound)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=agent.stop).start())
    return agent.run()


if __name__ == "__main__":
    sys.exit(main())
