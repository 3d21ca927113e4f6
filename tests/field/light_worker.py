"""The real supervisor, announcing fixed capabilities, so that a test of processes does not load torch."""

from __future__ import annotations

import os
import sys

from lockstep.address import BadAddress
from lockstep.logs import configure
from worker.__main__ import listen, parse, token_of
from worker.supervision import supervisor
from worker.supervision.agent import CONFIGURATION, DEVICE_IN_USE, Agent
from worker.supervision.devices import DeviceInUse, bind
from worker.supervision.options import Options


class LightAgent(Agent):
    """An agent that does not ask the installation what it can do."""

    def _capabilities(self) -> dict[str, dict[str, object]]:
        return {"datasets": {"digits": "f" * 64}, "rewards": {}, "environments": {}, "versions": {}}


def main() -> int:
    given = parse(sys.argv[1:])
    supervisor._EXIT_SECONDS = float(os.environ.get("EXIT_SECONDS", supervisor._EXIT_SECONDS))
    try:
        bound = bind(given.device, host="fieldhost", threads=1)
    except DeviceInUse as error:
        sys.stderr.write(f"error: {error}\n")
        return DEVICE_IN_USE
    configure("info")
    trainer = given.trainer_cmd.split()
    options = Options(given.api, token_of(given), None, 1, None, given.work_dir, given.spool_bytes, trainer, given.once)
    agent = LightAgent(options, bound)
    listen(agent, until_input_ends=given.until_input_ends)
    try:
        return agent.run()
    except BadAddress as error:
        sys.stderr.write(f"error: {error}\n")
        return CONFIGURATION


if __name__ == "__main__":
    sys.exit(main())
