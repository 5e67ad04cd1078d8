//! Several users on one mount: each user may do what modes and owners permit, and no more.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;

use buttress_test_program::skipped;

use crate::mounted::{Mounted, mounted, mounted_with};

/// Runs a shell line as a user, in the volume. Returns whether it succeeded, or `None` if the
/// needed tool is missing.
fn as_user(mount: &Mounted, user: u32, group: u32, line: &str) -> Option<bool> {
    let done = Command::new("setpriv")
        .args([&format!("--reuid={user}"), &format!("--regid={group}"), "--clear-groups"])
        .args(["sh", "-c", line])
        .current_dir(mount.path(""))
        .output();
    match done {
        Ok(output) => Some(output.status.success()),
        Err(_) => {
            skipped("setpriv");
            None
        }
    }
}

/// The owner, a member of the group, and another user try to use files of every mode that matters.
#[test]
fn owner_group_and_others() {
    let Some(mount) = mounted() else { return };
    fs::set_permissions(mount.path(""), Permissions::from_mode(0o755)).expect("a mode");
    let path = mount.path("file");
    fs::write(&path, "#!/bin/sh\nexit 0\n").expect("a file");
    chown(&path, Some(1000), Some(2000)).expect("an owner");
    let people = [(1000, 9000, 6), (9001, 2000, 3), (9001, 9000, 0)];
    for mode in [0o700, 0o070, 0o007, 0o640, 0o604, 0o046, 0o511, 0o222, 0o000] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
        for (user, group, shift) in people {
            let bits = mode >> shift & 7;
            for (line, bit) in [("cat file", 4), (": >> file", 2), ("test -x file && ./file", 1)] {
                // The shell must also read a script to run it.
                let needs = if bit == 1 { 5 } else { bit };
                let Some(done) = as_user(&mount, user, group, line) else { return };
                let about = format!("mode {mode:o}, user {user}, group {group}: {line}");
                assert_eq!(done, bits & needs == needs, "{about}");
            }
        }
    }
}

/// Directories: which users may list them, enter them, and make and remove names in them. In a
/// sticky directory, no user can remove files of other users.
#[test]
fn directories_of_several_users() {
    let Some(mount) = mounted() else { return };
    fs::set_permissions(mount.path(""), Permissions::from_mode(0o755)).expect("a mode");
    let make = |name: &str, mode| {
        fs::create_dir(mount.path(name)).expect("a directory");
        fs::write(mount.path(&format!("{name}/of-root")), "mine").expect("a file");
        fs::set_permissions(mount.path(name), Permissions::from_mode(mode)).expect("a mode");
    };
    make("closed", 0o700);
    make("listed", 0o744);
    make("passed", 0o711);
    make("open", 0o777);
    make("sticky", 0o1777);
    let tries = [
        ("ls closed", false),
        ("cat closed/of-root", false),
        ("ls listed", true),
        ("cat listed/of-root", false),
        ("ls passed", false),
        ("cat passed/of-root", true),
        ("touch passed/new", false),
        ("mkdir new", false),
        ("touch open/mine && rm -f open/of-root", true),
        ("touch sticky/mine && rm sticky/mine", true),
        ("rm -f sticky/of-root", false),
        ("mv sticky/of-root sticky/other", false),
        ("mv open/mine sticky/moved && ln sticky/moved sticky/linked", true),
        ("mknod open/disk b 8 0", false),
        ("chmod 777 sticky/of-root", false),
        ("chown 1234 sticky/of-root", false),
        ("chown 0 sticky/moved", false),
        ("chmod 600 sticky/moved && touch -d @1 sticky/moved", true),
        ("touch -d @1 sticky/of-root", false),
        ("setfattr -n trusted.x -v 1 sticky/moved", false),
    ];
    for (line, may) in tries {
        let Some(done) = as_user(&mount, 1234, 4321, line) else { return };
        assert_eq!(done, may, "{line}");
    }
    let moved = fs::metadata(mount.path("sticky/moved")).expect("it is there");
    assert_eq!((moved.uid(), moved.gid(), moved.mode() & 0o7777), (1234, 4321, 0o600));
    assert_eq!(as_user(&mount, 4321, 4321, "cat sticky/moved"), Some(false), "another user");
    let mount = mount.again();
    assert_eq!(as_user(&mount, 1234, 4321, "cat sticky/moved"), Some(true), "its owner, later");
    assert_eq!(as_user(&mount, 4321, 4321, "cat sticky/moved"), Some(false), "another user, later");
}

/// Ids of the host are mapped to ids of the volume. An object that a user makes belongs to the
/// mapped id in the volume. The entries of access lists are mapped, too. A user without a mapped id
/// cannot make anything.
#[test]
fn ids_are_mapped() {
    let maps = "uidmap=0:1000:1,uidmap=1:100000:1000,gidmap=0:1000:1";
    let Some(mut mount) = mounted_with(maps) else { return };
    let owner = |path: &str| {
        let meta = fs::symlink_metadata(mount.path(path)).expect("it is there");
        (meta.uid(), meta.gid())
    };
    assert_eq!(owner(""), (1000, 1000));
    let Some(done) =
        as_user(&mount, 1000, 1000, "mkdir dir && echo mine > dir/file && ln -s file dir/link")
    else {
        return;
    };
    assert!(done, "root of the volume may");
    assert_eq!([owner("dir"), owner("dir/file"), owner("dir/link")], [(1000, 1000); 3]);
    let error = fs::write(mount.path("of-root"), "").expect_err("root has no id there");
    assert_eq!(error.raw_os_error(), Some(75), "EOVERFLOW");
    chown(mount.path("dir/file"), Some(100_004), None).expect("it has one");
    assert_eq!(owner("dir/file"), (100_004, 1000));
    let error = chown(mount.path("dir/file"), Some(7), None).expect_err("an id of no range");
    assert_eq!(error.raw_os_error(), Some(75), "EOVERFLOW");
    let list =
        Command::new("setfacl").args(["-m", "u:100009:rw"]).arg(mount.path("dir/file")).status();
    assert!(list.is_ok_and(|status| status.success()), "setfacl");
    assert_eq!(as_user(&mount, 100_009, 5, "cat dir/file"), Some(true), "the list names it");
    assert_eq!(
        as_user(&mount, 100_010, 5, "cat dir/file > /dev/null && : >> dir/file"),
        Some(false)
    );
    let image = mount.image();
    mount.unmount();
    mount.finish();
    let device = buttress_block::FileDevice::open(&image, buttress_block::OpenOptions::default())
        .expect("an image");
    let options = buttress_fs::MountOptions::parse("ro").expect("options");
    let fs = buttress_fs::Filesystem::open(vec![std::sync::Arc::new(device)], options)
        .expect("a volume");
    let (dir, file) = (fs.resolve(b"dir").expect("it"), fs.resolve(b"dir/file").expect("it"));
    assert_eq!((dir.attr().uid, dir.attr().gid), (0, 0));
    assert_eq!((file.attr().uid, file.attr().gid), (5, 0));
    let list = file.xattr(b"system.posix_acl_access").expect("a list");
    assert!(list.chunks_exact(4).any(|word| word == 10_u32.to_le_bytes()), "{list:?}");
}
