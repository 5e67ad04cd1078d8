# Runs a page of the guide on a copy of this machine's files. `cargo xtask guide` starts it by
# unshare(1), with a mount namespace and a process namespace of its own. What the page changes,
# mounts or leaves running ends with them.
#
# Parameters: the folder to work in, which has the script and its prelude; the program; the folder
# of units of systemd.
set -euo pipefail
work=$1 program=$2 units=$3

# The namespace has copies of the mounts of tests, which keep their servers and devices from ending.
# The standard input is the lock that tests wait for while there are copies.
list=$(cat /proc/self/mountinfo)
while read -r _ _ _ _ place _ rest; do
    case "$rest" in
        *'- fuse.buttress '* | *'- fuseblk.buttress '* | *'- btrfs /dev/loop'*)
            umount -i -l "$(printf '%b' "$place")" 2>/dev/null || :
            ;;
    esac
done <<<"$list"
flock --unlock 0

# The copy: changes lie above the files, in memory.
mount -t tmpfs -o size=75% guide "$work/above"
mkdir "$work"/above/{new,work,root}
mount -t overlay guide "$work/above/root" \
    -o "lowerdir=/,upperdir=$work/above/new,workdir=$work/above/work"
cd "$work/above/root"
mount --rbind /dev dev
# Mounts of other programs lie in memory there. Their servers would serve until the page ends.
umount --recursive --lazy dev/shm && mount -t tmpfs shm dev/shm
mount --rbind /sys sys
mount -t proc proc proc
for folder in run tmp srv mnt; do
    mount -t tmpfs "$folder" "$folder"
done
mkdir -p run/lock run/guide home/guide var/lib/buttress usr/libexec/buttress/bin
mount --bind "$work" run/guide

# The program as the packages install it.
touch usr/bin/buttress
mount --bind "$program" usr/bin/buttress
for type in buttress fuse.buttress fuseblk.buttress; do
    ln -sf ../bin/buttress "usr/sbin/mount.$type"
    ln -sf ../bin/buttress "usr/sbin/umount.$type"
done
for name in btrfs mkfs.btrfs; do
    ln -sf ../../../bin/buttress "usr/libexec/buttress/bin/$name"
done
mkdir -p usr/lib/systemd/system
cp "$units"/* usr/lib/systemd/system

mkdir -p run/old
pivot_root . run/old
umount --lazy /run/old
cd /home/guide
export HOME=/home/guide OUTPUT=/run/guide/output
unset BUTTRESS_RUNTIME_DIR TMPDIR
# Loop devices are no part of a namespace.
detach() {
    losetup --raw --noheadings --output NAME,BACK-FILE | sed -n 's,^\([^ ]*\) .*/home/guide/.*,\1,p' | xargs --no-run-if-empty losetup --detach
}
trap detach EXIT
# Programs that ask for a terminal have none.
exec </dev/null >>"$OUTPUT" 2>&1 9>/run/guide/trace
. /run/guide/prelude
# The last line of the trace is the command that runs when the time is over.
BASH_XTRACEFD=9 PS4='+ $LINENO: '
set +u -E
trap 'echo "$LINENO: $BASH_COMMAND" >>/run/guide/failed' ERR
set -x
. /run/guide/script
set +x
# What the page has left mounted is written, so that a failure of that is a failure of the page.
for place in $(findmnt --raw --noheadings --output TARGET --types fuse.buttress,fuseblk.buttress | tac || true); do
    buttress umount "$place"
done
