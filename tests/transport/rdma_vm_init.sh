#!/bin/bash
# The first process of rdma_vm.sh's guest: makes the two RDMA devices, runs the command that
# /control tells, and switches the machine off.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 UCX_IB_GID_INDEX=0
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /control
mount -t devpts pts /dev/pts
for place in /dev/shm /tmp /run; do mount -t tmpfs tmpfs "$place"; done
while read -r module; do modprobe -q "$module"; done </etc/guest_modules
hostname rdmavm
ulimit -l unlimited
shared=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "$shared" control /control
folder=$(cat /control/folder)
mkdir -p "$folder"
mount -t 9p -o "$shared",cache=loose share "$folder"

# Soft-RoCE of Linux 6.1 knows only the initial network namespace, so both ends are in it. Rules put
# before the local table send packets between the two addresses over the cable.
sysctl -qw net.core.netdev_max_backlog=100000 net.ipv4.conf.all.rp_filter=0 \
  net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
ip link set lo up
ip link add veth0 type veth peer name veth1

# usage: add_end DEVICE_NUMBER OTHER_DEVICE_NUMBER
add_end() {
  local device=veth$1 address=10.0.0.$(($1 + 1)) other=10.0.0.$(($2 + 1)) table=10$1
  sysctl -qw "net.ipv4.conf.$device.accept_local=1" "net.ipv4.conf.$device.rp_filter=0"
  ip neigh replace "$other" lladdr "$(cat "/sys/class/net/veth$2/address")" dev "$device" \
    nud permanent
  ip route add "$other" dev "$device" src "$address" table "$table"
  ip rule add pref 1 iif "$device" lookup local
  ip rule add pref 2 iif lo to "$other" lookup "$table"
  rdma link add "rxe$1" type rxe netdev "$device"
}
for i in 0 1; do
  ip link set "veth$i" mtu 4200 up
  ip addr add "10.0.0.$((i + 1))/24" dev "veth$i"
done
add_end 0 1
add_end 1 0
ip rule add pref 3 lookup local
ip rule del pref 0

cd "$folder" || exit
{
  bash /control/command
  echo $? >/control/status.new
} 2>&1 </dev/null | cat >/dev/vport0p1
cd /
umount "$folder" || sync
mv /control/status.new /control/status
sync
echo o >/proc/sysrq-trigger
sleep 60
