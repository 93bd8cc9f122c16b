#!/usr/bin/env bash
# Runs test programs over RDMA inside rdma_vm.sh's guest; exits 1 if any failed.
# usage: tests/transport/verbs_suite.sh PROGRAM...
set -uo pipefail
# Nothing but RDMA, so that falling back to another wire fails a test.
export UCX_TLS=rc_verbs,self
# Soft-RoCE takes UCX's 7 for "for ever", and a lost peer's sends would never end.
export UCX_RC_RETRY_COUNT=6
export SPECFABRIC_TEST_HOST=10.0.0.2
export SPECFABRIC_TEST_DEVICES=rxe0:1,rxe1:1
export SPECFABRIC_TEST_WIRE=rc_verbs/rxe
export SPECFABRIC_TEST_CYCLES=100  # a connection takes a tenth of a second here
export SPECFABRIC_TEST_CONNECT_MS=3000
export SPECFABRIC_TEST_SILENCE_MS=3000  # before the control connection's TCP gives up
ulimit -c 0

failed=()
# usage: run NAME PROGRAM [ARGUMENT...]
run() {
  local name=$1 status
  shift
  echo "=== $name"
  timeout -k 5 600 "$@"
  status=$?
  ((status == 0)) || failed+=("$name (status $status)")
}

for program in "$@"; do
  name=$(basename -- "$program")
  if [[ $name == fault_matrix_test ]]; then
    # With both devices each, UCX joins a device to itself, and no packet meets the cable.
    run "$name over verbs" env SPECFABRIC_TEST_DEVICES=rxe0:1 SPECFABRIC_TEST_PEER_DEVICES=rxe1:1 \
      SPECFABRIC_TEST_LOSSY="veth0 veth1" "$program"
    run "$name over TCP" env -u UCX_RC_RETRY_COUNT UCX_TLS=tcp SPECFABRIC_TEST_HOST=127.0.0.1 \
      SPECFABRIC_TEST_DEVICES=lo SPECFABRIC_TEST_WIRE=tcp/lo SPECFABRIC_TEST_LOSSY=lo \
      "$program" --gtest_filter='*PacketsLost'
  else
    run "$name over verbs" "$program"
  fi
done
((${#failed[@]} == 0)) || echo "failed: ${failed[*]}"
exit $((${#failed[@]} > 0))
