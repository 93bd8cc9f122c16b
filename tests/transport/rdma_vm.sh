#!/usr/bin/env bash
# Runs a command where there are RDMA devices, without RDMA hardware: in a virtual machine with two
# Soft-RoCE devices, rxe0 (10.0.0.1) and rxe1 (10.0.0.2), joined by a virtual cable.
#
# usage: tests/transport/rdma_vm.sh FOLDER COMMAND [ARGUMENT...]
#        tests/transport/rdma_vm.sh --check   (says what this machine lacks for it, then exits 125)
#
# The guest is Debian 12 with UCX and rdma-core, runs the command as root and has no other network.
# FOLDER has the same path in it, can be written to, and is where the command starts; every UCX_*
# variable is passed on. Prints the command's output and exits with its status, or with 125 when the
# guest did not come to its end.
#
# The first run on a machine makes the guest's image: that takes root, Debian 12, its package
# archive and about a minute. Later runs need none of these and boot in seconds.
#   RDMA_VM_CACHE     where images are kept (${XDG_CACHE_HOME:-~/.cache}/specfabric/rdma-vm)
#   RDMA_VM_PACKAGES  further Debian packages for the guest
#   RDMA_VM_TIMEOUT   seconds until the guest is killed (300)
#   RDMA_VM_MEMORY    as qemu's -m (4G)
#   RDMA_VM_CPUS      as qemu's -smp (2)
#   RDMA_VM_ACCEL     kvm or tcg (kvm where it works)
set -euo pipefail

if (($# < 2)) && [[ $* != --check ]]; then
  echo "usage: tests/transport/rdma_vm.sh FOLDER COMMAND [ARGUMENT...] | --check" >&2
  exit 2
fi
here=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")")

packages="kmod mount procps iproute2 libstdc++6 ibverbs-providers ibverbs-utils rdmacm-utils"
packages+=" perftest ucx-utils${RDMA_VM_PACKAGES:+ $RDMA_VM_PACKAGES}"
modules="sch_netem rdma_rxe ib_uverbs rdma_ucm veth crc32_generic crc32_pclmul"
modules+=" virtio_pci virtio_console 9p 9pnet_virtio"

# Fails, saying why in one line, where the guest cannot run or its image not be made.
check_machine() {
  local tools=(qemu-system-x86_64) missing=() tool text
  if ! has_image; then
    tools+=(mmdebstrap cpio zstd apt-get)
    ((EUID == 0)) || missing+=("root, to make its image")
  fi
  [[ $(uname -m) == x86_64 ]] || missing+=("an x86-64 processor")
  grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release || missing+=("Debian 12, as in the guest")
  for tool in "${tools[@]}"; do
    command -v "$tool" >/dev/null || missing+=("$tool (scripts/setup --vm)")
  done
  ((${#missing[@]} == 0)) && return
  printf -v text '%s; ' "${missing[@]}"
  echo "the virtual machine with RDMA devices needs ${text%; }" >&2
  return 1
}

# Keeps of the kernel's modules only those that the guest loads.
# usage: prune_modules ROOT KERNEL_VERSION
prune_modules() {
  local root=$1 version=$2 module
  chroot "$root" depmod "$version"
  for module in $modules; do
    chroot "$root" modprobe -S "$version" --show-depends "$module"
  done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u >"$scratch/keep"
  find "$root/lib/modules" -name '*.ko' -printf '/lib/modules/%P\n' |
    grep -vxFf "$scratch/keep" | sed "s,^,$root," | xargs rm -f
  chroot "$root" depmod "$version"
}

# Makes $image/vmlinuz and $image/initrd: the whole root file system is the initial one.
build_image() {
  local root=$scratch/root kernel version sources=/etc/apt/sources.list.d/debian.sources
  [[ -e $sources ]] || sources=/etc/apt/sources.list
  kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/ *Depends: //p')
  version=${kernel#linux-image-}
  chmod 755 "$scratch"
  (
    cd "$scratch"
    apt-get -o APT::Sandbox::User=root download "$kernel"
    dpkg-deb -x "$kernel"_*.deb kernel
  )
  mmdebstrap --variant=essential --include="${packages// /,}" \
    --aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm "$root" "$sources"
  mv "$scratch/kernel/lib/modules" "$root/lib/modules"
  prune_modules "$root" "$version"
  echo rdmavm >"$root/etc/hostname"
  echo "127.0.0.1 localhost rdmavm" >"$root/etc/hosts"
  tr ' ' '\n' <<<"$modules" >"$root/etc/guest_modules"
  install -m 755 "$here/rdma_vm_init.sh" "$root/init"
  mkdir -p "$image.new"
  (cd "$root" && find . -xdev | cpio -o -H newc --quiet | zstd -q -3) >"$image.new/initrd"
  cp "$scratch/kernel/boot/vmlinuz-$version" "$image.new/vmlinuz"
  rm -rf "$image" "$root"
  mv "$image.new" "$image"
}

# The image is named by everything that goes into it.
name_image() {
  local key
  key=$({
    echo "$packages $modules"
    declare -f build_image prune_modules
    cat "$here/rdma_vm_init.sh"
  } | sha256sum | cut -c1-16)
  image=${RDMA_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/specfabric/rdma-vm}/$key
}

has_image() { [[ -s $image/initrd && -s $image/vmlinuz ]]; }

ensure_image() {
  local lock
  has_image && return
  mkdir -p "$(dirname -- "$image")"
  exec {lock}>"$image.lock"
  flock "$lock"
  has_image || build_image >&2
  exec {lock}>&-
}

# usage: run_guest FOLDER COMMAND [ARGUMENT...]
run_guest() {
  local folder=$1 control=$scratch/control accel=tcg cpu=max reader
  shift
  if [[ -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accel=kvm; fi
  accel=${RDMA_VM_ACCEL:-$accel}
  [[ $accel == kvm ]] && cpu=host
  mkdir "$control"
  echo "$folder" >"$control/folder"
  {
    export -p | grep '^declare -x UCX_' || true
    printf '%q ' "$@"
    echo
  } >"$control/command"
  mkfifo "$scratch/output"
  cat "$scratch/output" &
  reader=$!
  timeout -k 5 "${RDMA_VM_TIMEOUT:-300}" qemu-system-x86_64 -M q35,accel="$accel" -cpu "$cpu" \
    -smp "${RDMA_VM_CPUS:-2}" -m "${RDMA_VM_MEMORY:-4G}" -nodefaults -no-user-config -no-reboot \
    -display none -monitor none -kernel "$image/vmlinuz" -initrd "$image/initrd" \
    -append "console=ttyS0 panic=-1 mitigations=off rdinit=/init" \
    -serial file:"$scratch/console" -device virtio-serial-pci \
    -chardev file,id=out,path=/dev/stdout,append=on -device virtserialport,chardev=out \
    -virtfs local,path="$control",mount_tag=control,security_model=none \
    -virtfs local,path="$folder",mount_tag=share,security_model=none \
    </dev/null >"$scratch/output" &
  guest=$!
  wait "$guest" || echo "rdma_vm.sh: qemu ended with status $?" >&2
  guest=
  wait "$reader"
  [[ -s $control/status ]] && return "$(<"$control/status")"
  tail -n 40 "$scratch/console" >&2 || true
  return 125
}

scratch=$(mktemp -d)
guest=
trap '[[ -z $guest ]] || kill "$guest"; rm -rf -- "$scratch"' EXIT
trap 'exit 143' INT TERM
name_image
check_machine || exit 125
[[ $1 == --check ]] && exit
ensure_image
folder=$(realpath -- "$1")
shift
status=0
run_guest "$folder" "$@" || status=$?
exit "$status"
