#!/usr/bin/env bash
# usage: tests/long_tier_only.sh COMMAND...
# Runs the command in the long test tier (SPECFABRIC_TEST_TIER=long). In any other it exits with 77,
# which CTest reports as skipped.
if [ "${SPECFABRIC_TEST_TIER:-}" != long ]; then
  echo "only in the long tier: SPECFABRIC_TEST_TIER=long"
  exit 77
fi
exec "$@"
