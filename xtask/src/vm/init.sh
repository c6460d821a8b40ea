#!/bin/busybox sh
# The guest's init: mounts the shared file system, puts an overlay in memory over it, and runs the suite in it.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
option() { tr ' ' '\n' < /proc/cmdline | sed -n "s/^$1=//p"; }
mount -t virtiofs -o ro host /host || echo "@@ error could not mount the shared file system"
mount -t tmpfs -o size=60% layer /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root /root \
    || echo "@@ error could not mount the overlay"
mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t cgroup2 cgroup /root/sys/fs/cgroup
mount -t devtmpfs dev /root/dev
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts devpts /root/dev/pts
for dir in /root/dev/shm /root/run; do mount -t tmpfs tmpfs "$dir"; done
mkdir -p /root/run/lock /root/lib/modules
ip link set lo up
mount --bind "/host$(option vm.modules)" /root/lib/modules
suite="$(option vm.suite)"
plan="$(option vm.plan)"
umount /proc /sys
exec switch_root /root /bin/bash "$suite" "$plan"
