#!/usr/bin/env bash
# The program on emulated GPUs says what it says on CPUs: a target and its draft, ranks, stages, graphs.
#
#   tests/cuda/emulated_program_test.sh SPECFABRIC_EMULATED
set -euo pipefail
program=$1
export ASAN_OPTIONS=detect_leaks=0

generate() { # DEVICE ARGUMENT...
  "$program" generate --model=models/target --dtype=float32 --device="$1" --max_tokens=6 \
    --ignore_eos --kv_blocks=16 --max_context=256 --max_sequences=2 --max_step_tokens=64 \
    --log_level=warning --prompt='class Stack:' "${@:2}" 2>/dev/null
}

failed=0
# The text alone, which stands on standard output.
expect_the_cpus() { # NAME CPU-ARGUMENTS -- GPU-ARGUMENTS
  local name=$1 on_cpu=() said expected
  shift
  while [[ $1 != -- ]]; do
    on_cpu+=("$1")
    shift
  done
  shift
  expected=$(generate cpu "${on_cpu[@]}") || failed=1
  said=$(generate cuda "$@") || failed=1
  if [[ -n $expected && $said == "$expected" ]]; then
    echo "$name: the same"
  else
    printf '%s: expected %q, not %q\n' "$name" "$expected" "$said"
    failed=1
  fi
}

draft=(--draft_model=models/draft --speculation=always --ngram_lookup=false --max_draft_wait=60s)
rejection=("${draft[@]}" --temperature=1 --seed=7 --verification=rejection "--sampled_tree=2,1")
expect_the_cpus greedy -- --cuda_graphs
expect_the_cpus "sampled, two ranks" --temperature=1 --seed=3 -- --temperature=1 --seed=3 \
  --tensor_parallel=2 --cuda_graphs
expect_the_cpus "two stages" -- --pipeline_stages=2 --cuda_graphs
expect_the_cpus "with a draft" -- "${draft[@]}"
expect_the_cpus "verified with draft probabilities" "${rejection[@]}" -- "${rejection[@]}"
exit "$failed"
