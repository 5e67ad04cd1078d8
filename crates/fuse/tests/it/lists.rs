//! Access control lists: their inheritance, and their relation to modes.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use buttress_test_program::skipped;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::mounted::mounted;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// A list of (tag, permissions, id), as the attribute has it.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// Owner rwx, user 1234 rw-, group r-x, mask rwx, others none.
fn for_user_1234() -> Vec<u8> {
    let no_id = u32::MAX;
    list(&[(1, 7, no_id), (2, 6, 1234), (4, 5, no_id), (0x10, 7, no_id), (0x20, 0, no_id)])
}

/// New files and directories get the default list of their directory, limited by the requested
/// mode. The umask has no effect.
#[test]
fn inheritance() {
    let Some(mount) = mounted() else { return };
    fs::create_dir(mount.path("d")).expect("a directory");
    setxattr(mount.path("d"), DEFAULT, &for_user_1234(), XattrFlags::empty())
        .expect("a default list");
    fs::write(mount.path("d/f"), "").expect("a file");
    fs::create_dir(mount.path("d/e")).expect("a directory");
    let mode = |name: &str| fs::metadata(mount.path(name)).expect(name).mode() & 0o777;
    assert_eq!(mode("d/f"), 0o660, "0666 cut by the list, the mask for the group");
    assert_eq!(mode("d/e"), 0o770);
    let mut buffer = [0; 100];
    let len = getxattr(mount.path("d/e"), DEFAULT, &mut buffer).expect("handed on");
    assert_eq!(&buffer[..len], for_user_1234());
    assert_eq!(getxattr(mount.path("d/f"), DEFAULT, &mut buffer), Err(Errno::NODATA));
    assert!(getxattr(mount.path("d/f"), ACCESS, &mut buffer).is_ok());
    let mount = mount.again();
    assert!(getxattr(mount.path("d/f"), ACCESS, &mut buffer).is_ok());
}

/// `chmod` changes the mask, a new list changes the mode, and a list equal to the mode is not
/// stored.
#[test]
fn modes_and_lists_follow_each_other() {
    let Some(mount) = mounted() else { return };
    let path = mount.path("f");
    fs::write(&path, "").expect("a file");
    let mode = || fs::metadata(&path).expect("attributes").mode() & 0o777;
    setxattr(&path, ACCESS, &for_user_1234(), XattrFlags::empty()).expect("a list");
    assert_eq!(mode(), 0o770);
    fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("a mode");
    assert_eq!(mode(), 0o640);
    let no_id = u32::MAX;
    let wanted =
        list(&[(1, 6, no_id), (2, 6, 1234), (4, 5, no_id), (0x10, 4, no_id), (0x20, 0, no_id)]);
    let mut buffer = [0; 100];
    let len = getxattr(&path, ACCESS, &mut buffer).expect("the list");
    assert_eq!(buffer[..len], wanted, "the mask follows");
    let plain = list(&[(1, 7, no_id), (4, 1, no_id), (0x20, 2, no_id)]);
    setxattr(&path, ACCESS, &plain, XattrFlags::empty()).expect("a plain list");
    assert_eq!(mode(), 0o712);
    assert_eq!(getxattr(&path, ACCESS, &mut buffer), Err(Errno::NODATA));
    assert_eq!(
        setxattr(&path, ACCESS, b"\x02\0\0\0rubbish", XattrFlags::empty()),
        Err(Errno::INVAL)
    );
}

/// The kernel decides by the list: user 1234 may read a file that its mode would not let it read.
#[test]
fn the_kernel_decides_by_the_list() {
    let Some(mount) = mounted() else { return };
    fs::set_permissions(mount.path(""), Permissions::from_mode(0o755)).expect("a mode");
    let path = mount.path("f");
    fs::write(&path, "for some").expect("a file");
    fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("a mode");
    setxattr(&path, ACCESS, &for_user_1234(), XattrFlags::empty()).expect("a list");
    for (user, may) in [("1234", true), ("4321", false)] {
        let read = Command::new("setpriv")
            .args([&format!("--reuid={user}"), "--regid=4321", "--clear-groups", "cat", "f"])
            .current_dir(mount.path(""))
            .output();
        match read {
            Ok(output) => assert_eq!(output.status.success(), may, "user {user}: {output:?}"),
            Err(_) => return skipped("setpriv"),
        }
    }
}
