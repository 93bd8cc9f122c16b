#!/usr/bin/env bash
# Runs test programs over RDMA inside rdma_vm.sh's guest; exits 1 if any failed.
# usage: tests/transport/verbs_suite.sh PROGRAM...
set -uo pipefail
# Nothing but RDMA, so that falling back to another wire fails a test.
export UCX_TLS=rc_verbs,self
export SPECFABRIC_TEST_HOST=10.0.0.2
export SPECFABRIC_TEST_DEVICES=rxe0:1,rxe1:1
export SPECFABRIC_TEST_WIRE=rc_verbs/rxe
export SPECFABRIC_TEST_CYCLES=100  # a connection takes a tenth of a second here
export SPECFABRIC_TEST_CONNECT_MS=3000
export SPECFABRIC_TEST_SILENCE_MS=5000
export SPECFABRIC_TEST_LOSSY="veth0 veth1"
ulimit -c 0

failed=()
for program in "$@"; do
  name=$(basename -- "$program")
  echo "=== $name over verbs"
  timeout -k 5 600 "$program"
  status=$?
  ((status == 0)) || failed+=("$name (status $status)")
done
((${#failed[@]} == 0)) || echo "failed over verbs: ${failed[*]}"
exit $((${#failed[@]} > 0))
