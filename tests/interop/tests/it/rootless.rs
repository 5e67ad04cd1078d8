//! Mounts of a user without root, through `fusermount3`.

use std::os::unix::fs::PermissionsExt;

use buttress_interop::linux::{can_mount_fuse, has_program, run};
use buttress_interop::program::program;
use buttress_test_program::mounts::in_own_namespace;

/// Commands of the user `daemon` (it must have a name), in a namespace of mounts where it may open
/// `/dev/fuse`, as on most machines.
const SCRIPT: &str = r#"
set -eu
cd "$0"
mknod -m 666 device c 10 229
mount --bind device /dev/fuse
as_user() { setpriv --reuid=1 --regid=1 --clear-groups "$@"; }
as_user ./buttress mkfs image --size 300M >/dev/null
as_user mkdir mnt
as_user ./buttress mount image mnt --foreground -o suid,dev,idmap=user >/dev/null &
for try in $(seq 600); do
    grep -q " $0/mnt " /proc/self/mounts && break
    kill -0 $! || exit 1
    sleep 0.1
done
grep " $0/mnt " /proc/self/mounts | cut -d ' ' -f 4
as_user mkdir second
if as_user ./buttress mount image second 2>second.said; then exit 1; fi
cat second.said
as_user sh -c 'echo x > mnt/file && stat -c %u:%g mnt mnt/file'
as_user fusermount3 -u mnt
wait $!
"#;

/// A file of a mount without root can neither become root nor be a device. With `idmap=user`, files
/// of root in the volume belong to the user of the mount. A second mount of the volume is refused,
/// and the message has the reason.
#[test]
fn nosuid_and_nodev_are_not_asked_for() {
    let can = can_mount_fuse() && rustix::process::geteuid().is_root();
    if !can || !["fusermount3", "setpriv", "unshare"].iter().all(|name| has_program(name)) {
        return;
    }
    // A folder that every user may enter.
    let place = tempfile::Builder::new().prefix("buttress-rootless-").tempdir().expect("a folder");
    let every_user = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(place.path(), every_user).expect("a mode");
    std::fs::copy(program(), place.path().join("buttress")).expect("a copy of the program");
    let folder = place.path().to_str().expect("ASCII");
    let said = run("sh", in_own_namespace(None, SCRIPT, [folder]));
    let lines: Vec<_> = said.lines().collect();
    let [options, refused, top, file] = lines[..] else { panic!("{said}") };
    let options: Vec<_> = options.split(',').collect();
    assert!(options.contains(&"nosuid") && options.contains(&"nodev"), "{said}");
    assert!(refused.contains("only root can mount a volume at a second place"), "{said}");
    assert_eq!((top, file), ("1:1", "1:1"));
    let volume = crate::open::open(&[place.path().join("image")], false);
    let attr = volume.resolve(b"file").expect("it was made").attr();
    assert_eq!((attr.uid, attr.gid), (0, 0));
    crate::open::close(volume);
}
