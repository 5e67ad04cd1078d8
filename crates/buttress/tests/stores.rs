//! Volumes by every kind of name: in a store of objects, and in a part of a disk image.

#![cfg(feature = "stores")]

use std::path::PathBuf;

use buttress::{CreateOptions, ErrorKind, Filesystem, OpenOptions};
use buttress_remote::OpenRequest;

/// A volume in a store is made, locked, closed and read like one in a file. `check` finds nothing.
#[test]
fn a_volume_in_a_folder_of_objects_is_used_like_an_image() {
    let folder = tempfile::tempdir().expect("folder");
    let place = PathBuf::from(format!("file://{}", folder.path().join("volume").display()));
    let absent = Filesystem::open(&place).expect_err("nothing there");
    assert_eq!(absent.kind(), ErrorKind::NotFound, "{absent}");

    let fs = CreateOptions::new(1 << 30).create(&place).expect("made");
    fs.create_dir_all("/a/b").expect("made");
    fs.write("/a/b/text", vec![7; 3 << 20]).expect("written");
    let second = Filesystem::open(&place).expect_err("one writer at a time");
    assert_eq!(second.kind(), ErrorKind::Busy, "{second}");
    fs.close().expect("the store has everything");

    let again = CreateOptions::new(1 << 30).create(&place).expect_err("there is a volume");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists, "{again}");
    let other = CreateOptions::new(2 << 30).create(&place).expect_err("of another size");
    assert_eq!(other.kind(), ErrorKind::AlreadyExists, "{other}");
    let reader = OpenOptions::new().read_only(true).open(&place).expect("opened");
    assert_eq!(reader.read("/a/b/text").expect("read"), vec![7; 3 << 20]);
    drop(reader);

    let device =
        buttress_remote::open(&place, buttress_block::OpenOptions::READ, &OpenRequest::default());
    let devices = vec![device.expect("opened").device()];
    let options = buttress_check::Options::thorough();
    let report = buttress_check::check_devices(devices, &options, &buttress_check::NoProgress);
    let report = report.expect("a volume");
    assert!(report.issues.is_empty(), "{}", report.to_text());
}

/// A volume in a part of an image leaves the bytes around the part alone.
#[test]
fn a_volume_in_a_part_of_an_image_leaves_the_rest_alone() {
    let folder = tempfile::tempdir().expect("folder");
    let image = folder.path().join("disk.img");
    let around = vec![0xa5; 1 << 20];
    let mut bytes = around.clone();
    bytes.resize((1 << 20) + (256 << 20), 0);
    bytes.extend_from_slice(&around);
    std::fs::write(&image, &bytes).expect("written");
    let part = PathBuf::from(format!("{}@1MiB+256MiB", image.display()));

    let fs = CreateOptions::new(256 << 20).create(&part).expect("made");
    fs.write("/text", "inside").expect("written");
    fs.close().expect("closed");
    let fs = Filesystem::open(&part).expect("opened");
    assert_eq!(fs.read_to_string("/text").expect("read"), "inside");
    fs.close().expect("closed");
    let bytes = std::fs::read(&image).expect("read");
    assert_eq!(bytes[..1 << 20], around);
    assert_eq!(bytes[(1 << 20) + (256 << 20)..], around);
}

/// A device in a store is refused beside another device: the two have no common commit.
#[test]
fn a_store_beside_a_file_is_refused_for_writing() {
    let folder = tempfile::tempdir().expect("folder");
    let place = PathBuf::from(format!("file://{}", folder.path().join("volume").display()));
    let refused = OpenOptions::new().open_all(&[&folder.path().join("a.img"), &place]);
    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::InvalidInput);
}
