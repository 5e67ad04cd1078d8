//! overlayfs with its upper layer on a mount. It leaves the same objects there as on Linux's btrfs.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use buttress_test_program::unless_busy;
use rustix::fs::llistxattr;

use crate::linux::Linux;
use crate::mounted::mounted;

/// Works in an overlay with its upper layer in `dir`. Returns the content of the upper layer and of
/// the overlay.
fn worked(dir: &Path) -> Vec<String> {
    let lower = tempfile::tempdir().expect("a temporary directory");
    let low = |name: &str| lower.path().join(name);
    fs::create_dir_all(low("d/inner")).expect("directories");
    for name in ["kept", "removed", "renamed", "linked", "d/f", "d/inner/g"] {
        fs::write(low(name), name).expect("a file");
    }
    for name in ["upper", "work", "merged"] {
        fs::create_dir(dir.join(name)).expect("a directory");
    }
    let at = |name: &str| dir.join("merged").join(name);
    let (upper, work) = (dir.join("upper"), dir.join("work"));
    let options = format!(
        "lowerdir={},upperdir={},workdir={},index=off",
        lower.path().display(),
        upper.display(),
        work.display()
    );
    let mount = |options: &str| {
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", options]).arg(dir.join("merged"));
        assert!(mount.status().expect("mount runs").success(), "{options}");
    };
    let unmount = || {
        let done = unless_busy(|| Command::new("umount").arg(dir.join("merged")).output());
        assert!(done.status.success());
    };
    mount(&options);
    fs::remove_file(at("removed")).expect("removed");
    fs::rename(at("renamed"), at("d/renamed")).expect("renamed");
    fs::write(at("kept"), "changed").expect("written");
    fs::hard_link(at("linked"), at("link")).expect("a link");
    fs::remove_dir_all(at("d/inner")).expect("removed");
    fs::create_dir(at("d/inner")).expect("opaque");
    fs::write(at("d/inner/new"), "new").expect("written");
    unmount();
    mount(&options);
    let mut said = Vec::new();
    list(&dir.join("merged"), &dir.join("merged"), &mut said);
    unmount();
    list(&upper, &upper, &mut said);
    said
}

/// Every name below `dir`, with its kind, its links and its attributes.
fn list(top: &Path, dir: &Path, said: &mut Vec<String>) {
    let mut names: Vec<_> = fs::read_dir(dir).expect("a listing").flatten().collect();
    names.sort_by_key(fs::DirEntry::file_name);
    for name in names {
        let path = name.path();
        let attr = fs::symlink_metadata(&path).expect("attributes");
        let kind = attr.file_type();
        let what = match () {
            () if kind.is_char_device() => format!("device {}", attr.rdev()),
            () if kind.is_dir() => "directory".to_owned(),
            () => format!("file {:?} of {} names", fs::read_to_string(&path), attr.nlink()),
        };
        let mut attributes = vec![0; 4096];
        let len = llistxattr(&path, &mut attributes[..]).expect("a list");
        let mut words: Vec<_> = attributes[..len]
            .split(|&byte| byte == 0)
            // The attribute with the origin of a file has handles, which differ between file
            // systems.
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .filter(|word| !word.is_empty() && !word.ends_with("origin"))
            .collect();
        words.sort();
        let below = path.strip_prefix(top).expect("below the top").display();
        said.push(format!("{below}: {what} {words:?}"));
        if kind.is_dir() {
            list(top, &path, said);
        }
    }
}

/// With whiteouts, opaque directories, copies up and links, the upper layer is the same as on
/// Linux's btrfs.
#[test]
fn overlays_leave_what_they_leave_on_linux() {
    let Some(mount) = mounted() else { return };
    let ours = worked(&mount.path(""));
    assert!(ours.iter().any(|line| line.starts_with("removed: device 0")), "{ours:#?}");
    let Some(linux) = Linux::mounted("") else { return };
    assert_eq!(ours, worked(linux.path()));
}
