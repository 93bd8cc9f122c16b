#!/usr/bin/env bash
# Copies into a new FOLDER the shared libraries that the programs need and rdma_vm.sh's guest lacks;
# the C library, UCX and rdma-core are its own.
# usage: tests/transport/rdma_vm_libraries.sh FOLDER PROGRAM...
set -euo pipefail
if (($# < 2)); then
  echo "usage: tests/transport/rdma_vm_libraries.sh FOLDER PROGRAM..." >&2
  exit 2
fi
folder=$1
shift
own='/(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|uc[a-z]|ibverbs|rdmacm))\.so'
rm -rf -- "$folder"
mkdir -p -- "$folder"
# `ldd` prints "name => path (address)".
ldd "$@" | awk '$2 == "=>" { print $3 }' | sort -u | grep -vE "$own" |
  xargs cp --target-directory "$folder"
