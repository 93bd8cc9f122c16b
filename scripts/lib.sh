# Shared by the scripts beside it, which source it after setting `root` to the repository's root.
# shellcheck shell=bash

# The name that progress lines carry: the script that the person started.
script_name=$(basename -- "$0")

say() {
  if [[ -t 2 ]]; then
    printf '\033[1m%s:\033[0m %s\n' "$script_name" "$*" >&2
  else
    printf '%s: %s\n' "$script_name" "$*" >&2
  fi
}

die() {
  printf '%s: %s\n' "$script_name" "$*" >&2
  exit 1
}

# Runs `command...`, saying what it is for before and how long it took after.
# usage: step "what it does" command...
step() {
  local what=$1 begin=$SECONDS
  shift
  say "$what ..."
  "$@" || return
  say "$what: done in $((SECONDS - begin)) s"
}

# One hash over the named files' contents, in the order given.
hash_files() { cat -- "$@" | sha256sum | cut -c1-12; }
