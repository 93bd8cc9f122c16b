#!/usr/bin/env bash
# The program on emulated GPUs, with its defaults, says what it says on CPUs: a target and its draft,
# ranks, stages; and it logs what of its features works, and why the others do not.
#
#   tests/cuda/emulated_program_test.sh SPECFABRIC_EMULATED
set -euo pipefail
program=$1
export ASAN_OPTIONS=detect_leaks=0

generate() { # DEVICE ARGUMENT...
  "$program" generate --model=models/target --dtype=float32 --device="$1" --max_tokens=6 \
    --ignore_eos --max_context=256 --max_sequences=2 --max_step_tokens=64 \
    --log_level="${log_level:-warning}" --prompt='class Stack:' "${@:2}" 2>"$log"
}

failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
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
expect_the_cpus greedy --
expect_the_cpus "sampled, two ranks" --temperature=1 --seed=3 -- --temperature=1 --seed=3 \
  --tensor_parallel=2
expect_the_cpus "two stages" -- --pipeline_stages=2
expect_the_cpus "with a draft" -- "${draft[@]}"
expect_the_cpus "verified with draft probabilities" "${rejection[@]}" -- "${rejection[@]}"
# Its text would be the same whatever it drafts.
for kind in dspark eagle3; do
  reader=("${draft[@]}" "--draft_model=models/$kind")
  expect_the_cpus "with a drafter that reads hidden states, $kind" "${reader[@]}" -- "${reader[@]}"
  if ! grep -Eq ' [1-9][0-9]* accepted' "$log"; then
    echo "nothing that it drafts is accepted"
    cat "$log"
    failed=1
  fi
done
EMULATED_NO_GRAPHS="" expect_the_cpus "without graphs" -- --tensor_parallel=2

# What a start logs: `up` and `target` show it; `generate` does from --log_level=debug on.
expect_logged() { # LINE ARGUMENT...
  log_level=debug generate cuda "${@:2}" >/dev/null || failed=1
  if grep -q -- "$1" "$log"; then
    echo "logged: $1"
  else
    printf 'not logged: %s\n' "$1"
    cat "$log"
    failed=1
  fi
}
expect_logged "feature cuda_graphs: on"
expect_logged "feature peer_sums: on" --tensor_parallel=2
expect_logged "feature flash_attention: on" --dtype=bfloat16
expect_logged "feature flash_attention: off: its kernels do not take float32"
expect_logged "feature peer_sums: off: it is disabled" --tensor_parallel=2 \
  --disable_features=peer_sums,cuda_graphs
expect_logged "feature gpu_draft_probs: off: .*GPU" "${rejection[@]}"
expect_logged "feature gpu_states: off: .*GPU" "${reader[@]}"
# A draft takes no more than its sessions need: 2 of 16 blocks and 4 to spare.
expect_logged "KV cache: 640 tokens in 40 blocks" "${draft[@]}" --max_sessions=2
EMULATED_NO_GRAPHS=1 expect_logged "feature cuda_graphs: off: rank 1: " --tensor_parallel=2
EMULATED_GPUS_APART=1 expect_logged \
  "feature peer_sums: off: rank 0: GPU 0 cannot access the memory of GPU 1" --tensor_parallel=2
if generate cuda --gpu_memory_fraction=.02 >/dev/null || ! grep -q "no room for the KV cache" "$log"
then
  echo "a cache was made of no memory"
  failed=1
fi
exit "$failed"
