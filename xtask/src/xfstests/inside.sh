#!/usr/bin/env bash
# Runs one test of xfstests in a mount namespace of its own: what `cargo xtask xfstests` starts by
# unshare(1). Everything that it changes outside of its folder ends with the namespace.
#
# Environment: CHECKOUT (xfstests, built), WORK (a folder for this run), BUTTRESS (the program),
# OPTIONS (of mount(8)). TEST_DEV, SCRATCH_DEV (block devices or image files). NAME (such as
# generic/001).
set -euo pipefail

# The namespace has copies of all mounts. Those of servers and of loop devices would keep both from
# ending. The list is read first, since it changes.
while read -r _ _ _ _ place _ rest; do
    case "$rest" in
        # A mount below another one has gone with that.
        *"- fuse"* | *" /dev/loop"*) umount -i -l "$(printf '%b' "$place")" 2>/dev/null || : ;;
    esac
done <<<"$(cat /proc/self/mountinfo)"

mkdir -p "$WORK"/{bin,test,scratch,results,etc,upper,layer}
# Helpers that mount(8), mkfs(8) and fsck(8) find: the system's folder with ours above it.
mount -t tmpfs none "$WORK/layer"
mkdir "$WORK/layer/upper" "$WORK/layer/work"
for name in mount.fuse.buttress umount.fuse.buttress; do
    ln -s "$BUTTRESS" "$WORK/layer/upper/$name"
done
cat >"$WORK/layer/upper/mkfs.fuse.buttress" <<END
#!/bin/sh
exec "$BUTTRESS" mkfs "\$@"
END
# Both checkers; fsck(8) hands on options that they do not have.
cat >"$WORK/layer/upper/fsck.fuse.buttress" <<END
#!/bin/sh
for device; do :; done
btrfs check --check-data-csum "\$device" && "$BUTTRESS" check "\$device"
END
chmod +x "$WORK"/layer/upper/*
sbin=$(readlink -f /sbin)
mount -t overlay overlay "$sbin" \
    -o "lowerdir=$sbin,upperdir=$WORK/layer/upper,workdir=$WORK/layer/work"

# The users and groups that tests act as.
cp /etc/passwd /etc/group /etc/shadow "$WORK/etc/"
number=61000
for user in fsgqa 123456-fsgqa fsgqa2; do
    number=$((number + 1))
    grep -q "^$user:" /etc/passwd && continue
    echo "$user:x:$number:$number::/tmp:/bin/bash" >>"$WORK/etc/passwd"
    echo "$user:x:$number:" >>"$WORK/etc/group"
    echo "$user:*:19000:0:99999:7:::" >>"$WORK/etc/shadow"
done
for file in passwd group shadow; do
    mount --bind "$WORK/etc/$file" "/etc/$file"
done

# What the suite asks of a file system by its name. These functions come behind its own.
cat "$CHECKOUT/common/rc" - >"$WORK/rc" <<'END'
if [ "$FSTYP" = fuse.buttress ]; then
    _try_scratch_mkfs_sized() {
        local size=$1 mixed=
        shift
        [ $# -gt 0 ] && shift
        if [ -b "$SCRATCH_DEV" ]; then
            [ "$(blockdev --getsize64 "$SCRATCH_DEV")" -ge "$size" ] || _notrun "device too small"
        fi
        [ "$size" -lt $((256 << 20)) ] && mixed=--mixed
        mkfs.fuse.buttress $MKFS_OPTIONS $mixed -b "$size" "$@" "$SCRATCH_DEV"
    }
    # FUSE passes no sync; fsync of the top directory is what commits.
    _sync_fs() {
        $XFS_IO_PROG -rxc syncfs "$1"
        $XFS_IO_PROG -rc fsync "$1"
    }
    # Only with CAP_SYS_RESOURCE can a hard limit be raised again; soft ones have the same effect.
    ulimit() {
        builtin ulimit -S "$@"
    }
    # An image file is as good as a device. Tests that need a real one ask for it below.
    _is_block_dev() {
        if [ -f "$1" ]; then
            stat --format=image:%d:%i "$1"
        elif [ -b "$1" ]; then
            stat --dereference --format=%t:%T "$1"
        fi
    }
    _require_block_device() {
        [ -b "$1" ] || _notrun "needs a block device"
    }
    _require_names_are_bytes() {
        :
    }
    _filesystem_timestamp_range() {
        echo "$((1 << 63)) $(((1 << 63) - 1))"
    }
fi
END
mount --bind "$WORK/rc" "$CHECKOUT/common/rc"
# The suite takes a file for a volume where the type is one of these.
sed 's/^\t9p|fuse|tmpfs/\tfuse.buttress|9p|fuse|tmpfs/' "$CHECKOUT/common/config" >"$WORK/config"
mount --bind "$WORK/config" "$CHECKOUT/common/config"

# Names in /tmp are made from process ids, which the runs of two namespaces share.
case "$CHECKOUT$WORK" in
    /tmp/*) ;;
    *) mount -t tmpfs none /tmp && chmod 1777 /tmp ;;
esac

cd "$CHECKOUT"
export FSTYP=fuse.buttress TEST_DEV SCRATCH_DEV
export TEST_DIR="$WORK/test" SCRATCH_MNT="$WORK/scratch" RESULT_BASE="$WORK/results"
export MKFS_OPTIONS=-f MOUNT_OPTIONS="-o $OPTIONS" TEST_FS_MOUNT_OPTS="-o $OPTIONS"
export HOST_OPTIONS="$WORK/none"
export KEEP_DMESG=no FSTESTS_ISOL=privatens
unset CHECKOUT WORK BUTTRESS OPTIONS
exec ./check "$NAME"
