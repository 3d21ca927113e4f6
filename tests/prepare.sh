#!/usr/bin/env bash
# Bring up what tests need and is missing: chromium for browser tests, a PostgreSQL database.
set -euo pipefail
bin="$1"
if ! command -v chromium >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
  else
    echo "chromium is missing: browser tests will be skipped (install the package chromium)"
  fi
fi
"$bin/python" -m tests.postgres || echo "no PostgreSQL at LOCKSTEP_TEST_PG: its tests will be skipped"
