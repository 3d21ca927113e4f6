#!/usr/bin/env bash
# Bring up what tests need and is missing: chromium for browser tests, nginx and PgBouncer, iproute2, a PostgreSQL database.
set -euo pipefail
bin="$1"
PATH="$PATH:/usr/sbin"
missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v nginx >/dev/null || missing+=(nginx-light)
command -v pgbouncer >/dev/null || missing+=(pgbouncer)
command -v ip >/dev/null || missing+=(iproute2)
if [ "${#missing[@]}" -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq || true
  for package in "${missing[@]}"; do # RUNLEVEL: no service is started
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null || true
  done
fi
command -v chromium >/dev/null || echo "chromium is missing: browser tests will be skipped (install the package chromium)"
command -v nginx >/dev/null || echo "nginx is missing: its tests are left out (install the package nginx-light)"
command -v pgbouncer >/dev/null || echo "PgBouncer is missing: its tests are left out (install the package pgbouncer)"
command -v ip >/dev/null || echo "ip is missing: tests of a link that is cut will be skipped (install the package iproute2)"
"$bin/python" -m tests.postgres || echo "no PostgreSQL at LOCKSTEP_TEST_PG: its tests will be skipped"
