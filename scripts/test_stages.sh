# The stages of scripts/test, which sources this and sets `root` and `venv`: what each needs, and how
# it runs.
# shellcheck shell=bash disable=SC2034,SC2154

# In the order in which they run; the trees in the order in which they are built.
all_stages=(lint ctest smoke pytest deploy verbs asan tsan ucx fuzz cuda tidy aarch64)
all_trees=(release asan tsan ucx-wheel cuda aarch64)

# CTest's tests that take most of the time, by name: they wait for timeouts, repeat others on another
# wire, or are statistics. --fast leaves them out.
slow_tests='_tcp_test$|_no_cma_test$|^(churn|fault_matrix|liveness|oracle|perftest)_test$'

is_stage() { [[ $1 == gpu || " ${all_stages[*]} " == *" $1 "* ]]; }

# The build tree that a stage uses: a preset of CMake.
tree_of() {
  case $1 in
    ctest | smoke | pytest | deploy | verbs) echo release ;;
    asan | fuzz) echo asan ;;
    tsan | aarch64) echo "$1" ;;
    ucx) echo ucx-wheel ;;
    cuda | gpu | tidy) echo cuda ;;  # tidy also needs release, which is built before
  esac
}

# Whether a stage may run beside others: nothing in it is timed.
runs_beside() { [[ $1 == fuzz || $1 == cuda || $1 == tidy || $1 == aarch64 ]]; }

setup_options_of() {
  case $1 in
    deploy | ucx | aarch64) echo "--$1" ;;
    cuda | gpu | tidy) echo --cuda ;;
  esac
}

# Sizes of tests, by the environment: what is set already stays.
set_tier() {
  export SPECFABRIC_TEST_TIER=$1
  case $1 in
    long)
      export SPECFABRIC_CHAOS_MINUTES=${SPECFABRIC_CHAOS_MINUTES:-10}
      export SPECFABRIC_ALL_MUTANTS=${SPECFABRIC_ALL_MUTANTS:-1}
      export SPECFABRIC_SOAK_MINUTES=${SPECFABRIC_SOAK_MINUTES:-5}
      export SPECFABRIC_DISTRIBUTION_SAMPLES=${SPECFABRIC_DISTRIBUTION_SAMPLES:-200000}
      export SPECFABRIC_SCHEMAS=${SPECFABRIC_SCHEMAS:-200}
      export SPECFABRIC_DISTRIBUTION_SEEDS=${SPECFABRIC_DISTRIBUTION_SEEDS:-3}
      export SPECFABRIC_FUZZ_SECONDS=${SPECFABRIC_FUZZ_SECONDS:-10800}
      ;;
    *)
      export SPECFABRIC_FUZZ_SECONDS=${SPECFABRIC_FUZZ_SECONDS:-60}
      # That the kernels compile is seen with one architecture.
      export CUDAARCHS=${CUDAARCHS:-90a-real}
      ;;
  esac
}

# The C++ tests of a preset, with further options of CTest.
run_ctest() {
  local preset=$1
  shift
  ctest --preset "$preset" --parallel "$(nproc)" --no-tests=error --timeout 600 "$@"
}

# Pytest with further options; the folders of the stage deploy are named by that stage alone.
run_pytest() { "$venv/bin/python" -m pytest -q -rs --durations=10 "$@"; }

# The short end-to-end set on a sanitizer's binaries. Its reports go to files: nobody asks for the
# exit status of a process that a test kills.
run_sanitized_smoke() {
  local tree=$1 reports options suppressions=$root/tests/suppressions status=0
  reports=$(mktemp -d)
  options=log_path=$reports/report:external_symbolizer_path=$(command -v llvm-symbolizer-16)
  (
    export SPECFABRIC_BINARY=$root/build-$tree/specfabric
    export ASAN_OPTIONS=$options UBSAN_OPTIONS=print_stacktrace=1
    export LSAN_OPTIONS=suppressions=$suppressions/lsan.txt:print_suppressions=0
    if [[ $tree == tsan ]]; then
      export TSAN_OPTIONS=suppressions=$suppressions/tsan.txt:$options
      export UCX_MEM_MMAP_HOOK_MODE=none
    fi
    run_pytest -m smoke tests/e2e
  ) || status=1
  if [[ -n $(ls -A -- "$reports") ]]; then
    head -n 100 -- "$reports"/* >&2
    status=1
  fi
  rm -rf -- "$reports"
  return "$status"
}

# A sanitizer's C++ tests and the short end-to-end set, both even where the first fail. The same tests
# on another wire run the same code of ours once more: in the long tier.
run_sanitizer() {
  local status=0 options=(--exclude-regex '_tcp_test$')
  [[ $SPECFABRIC_TEST_TIER != long ]] || options=()
  run_ctest "$1" "${options[@]}" || status=1
  run_sanitized_smoke "$1" || status=1
  return "$status"
}

# Other projects' clients, for tests/clients: a minute and a half where there are none yet. Those
# that cannot be installed are skipped there, by name.
install_clients() {
  local which=--clients
  [[ ${SPECFABRIC_CLIENTS:-1} == 0 ]] && return 0
  [[ $SPECFABRIC_TEST_TIER != long ]] || which=--all-clients
  "$root/scripts/setup" "$which" || say "clients: not all could be installed; the rest is tested"
}

# In the long tier, for it is a quarter of an hour of compiling. Where it was never built its tests are
# skipped and say so.
build_control_plane() {
  [[ $SPECFABRIC_TEST_TIER != long ]] ||
    step "control plane" "$root/tests/kube/control-plane.sh" build >/dev/null
}

run_stage() {
  case $1 in
    lint) "$root/scripts/lint" ;;
    tidy) "$root/scripts/build" release && "$root/scripts/lint" --tidy ;;
    ctest)
      if [[ $SPECFABRIC_TEST_TIER == fast ]]; then
        run_ctest release --exclude-regex "$slow_tests"
      else
        run_ctest release
      fi
      ;;
    smoke) run_pytest -m smoke tests/e2e ;;
    pytest)
      install_clients && run_pytest --ignore=tests/helm --ignore=tests/kube --ignore=tests/package \
        --ignore=tests/watch
      ;;
    deploy) build_control_plane && run_pytest tests/helm tests/kube tests/package tests/watch ;;
    verbs) "$root/scripts/test-verbs" ;;
    asan | tsan) run_sanitizer "$1" ;;
    fuzz) "$root/scripts/fuzz" --seconds "$SPECFABRIC_FUZZ_SECONDS" ;;
    ucx) run_ctest ucx-wheel ;;
    cuda | aarch64) run_ctest "$1" ;;
    gpu) "$root/scripts/gpu_check" ;;
  esac
}
