#!/usr/bin/env bash
# Measures specfabric-perftest and ucx_perftest over RDMA in tests/transport/rdma_vm.sh's guest, for
# verbs.py. Prints "sample,REPETITION,SYSTEM,BYTES,ITERATIONS,P50_US,WIRE" for each measurement.
# usage: bench/transport/verbs_guest.sh SPECFABRIC_PERFTEST REPETITIONS BYTES:ITERATIONS...
set -euo pipefail
perftest=$1 repetitions=$2
shift 2
server_address=10.0.0.2 port=18515 server=
log=$(mktemp -d)
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true; rm -rf -- "$log"' EXIT

# The same for both. The older protocols are what specfabric takes over verbs with this UCX.
export UCX_PROTO_ENABLE=n UCX_KEEPALIVE_INTERVAL=inf UCX_WARN_UNUSED_ENV_VARS=n

# Soft-RoCE's packets are the kernel's work. Programs that poll on every core would make it wait for
# their time slices, which are a hundred times as long as a message takes.
for thread in $(pgrep ksoftirqd); do chrt --fifo --pid 50 "$thread"; done

fail() {
  echo "verbs_guest.sh: $1" >&2
  tail -n 3 "$log/server" "$log/client" >&2
  exit 1
}

await_listening() {
  local i
  for ((i = 0; i < 100; i++)); do
    [[ -z $(ss -Hltn "sport = :$port") ]] || return 0
    kill -0 "$server" 2>/dev/null || break
    sleep .1
  done
  fail "the server does not listen"
}

# usage: run_pair PROGRAM ARGUMENT...
run_pair() {
  port=$((port + 1))
  UCX_NET_DEVICES=rxe1:1 taskset -c 0 "$@" -p "$port" >"$log/server" 2>&1 &
  server=$!
  await_listening
  UCX_NET_DEVICES=rxe0:1 timeout 120 taskset -c 1 "$1" "$server_address" "${@:2}" -p "$port" \
    >"$log/client" 2>&1 || fail "the client of $1 failed"
  wait "$server" || fail "the server of $1 failed"
  server=
}

# usage: measure SYSTEM REPETITION BYTES ITERATIONS
measure() {
  local result wire
  local common=(-s "$3" -n "$4" -w $(($4 / 10 + 1)))
  case $1 in
    ucx_perftest)
      # It meets its peer by address, for which reliable connections take a datagram at first.
      wire=rc_verbs,ud_verbs:aux
      UCX_TLS=$wire,self run_pair ucx_perftest -t ucp_am_lat "${common[@]}" -I -f -v
      result=$(sed -nE 's/^ *[0-9]+,([0-9.]+),.*/\1/p' "$log/client")
      ;;
    specfabric)
      UCX_TLS=rc_verbs,self run_pair "$perftest" -t am_lat "${common[@]}" --csv \
        --bind="$server_address"
      result=$(awk -F, '/^am_lat,/ { print $8 }' "$log/client")
      wire=$(awk -F, '/^am_lat,/ { print $2 }' "$log/client")
      [[ $wire == rc_verbs/* ]] || fail "specfabric ran over '$wire'"
      ;;
  esac
  [[ -n $result ]] || fail "$1 printed no result"
  echo "sample,$2,$1,$3,$4,$result,${wire//,/+}"
}

for ((repetition = 0; repetition < repetitions; repetition++)); do
  systems=(ucx_perftest specfabric)
  if ((repetition % 2)); then systems=(specfabric ucx_perftest); fi
  for case in "$@"; do
    for system in "${systems[@]}"; do
      measure "$system" "$repetition" "${case%:*}" "${case#*:}"
    done
  done
done
