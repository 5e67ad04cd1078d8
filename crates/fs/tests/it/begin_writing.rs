//! Volumes that are opened for reading and made writable later.

use std::sync::Arc;

use buttress_block::Device;
use buttress_fs::{ErrorKind, Filesystem, MountOptions, TreeId};

use crate::checker::check;
use crate::volume::{copy, file_with, memory, mount, pattern};

fn opened_for_reading(device: &Arc<dyn Device>, list: &str) -> Filesystem {
    let mut options = MountOptions::parse(list).expect("options");
    options.may_begin_writing = true;
    Filesystem::open(vec![Arc::clone(device)], options).expect("it is read")
}

/// An opening for reading leaves some work to a writer. The work is done when the volume becomes
/// writable: the drop of deleted subvolumes goes on, free space is read, and open files stay
/// usable.
#[test]
fn a_volume_that_is_woken_is_as_any_other() {
    let device = memory(256);
    let fs = mount(&device);
    let sub = fs.root().create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    file_with(&sub, "in it", &pattern(1, 1 << 20));
    file_with(&fs.root(), "file", &pattern(2, 3 << 20));
    fs.sync().expect("a commit");
    let tree = sub.id().tree;
    drop(sub);
    // Copy the device as after a crash right after the commit that removed the name. The rest of
    // the subvolume still exists.
    fs.root().delete_subvolume(b"sub").expect("it goes");
    fs.commit().expect("a commit");
    let device: Arc<dyn Device> = Arc::new(copy(&*device));
    fs.close().expect("the other is closed");

    let fs = opened_for_reading(&device, "ro");
    assert!(fs.can_begin_writing());
    let file = fs.root().lookup(b"file").expect("it is there");
    let write = |bytes: &[u8]| file.write_at(0, bytes);
    assert_eq!(write(b"x").expect_err("it is read-only").kind(), ErrorKind::ReadOnly);
    fs.set_read_only(false).expect("it is woken");
    assert!(!fs.can_begin_writing() && fs.read_only_reason().is_none());
    write(b"written").expect("it is writable");
    for number in 0..40 {
        file_with(&fs.root(), &format!("new-{number}"), &pattern(number, 1 << 20));
    }
    fs.sync().expect("a commit");
    crate::volume::drop_all(&fs);
    assert!(!fs.dying_subvolumes().expect("the list").contains(&tree));
    fs.close().expect("everything durable");
    check(&device);
    let fs = mount(&device);
    let mut read = [0; 7];
    let file = fs.root().lookup(b"file").expect("it is there");
    assert_eq!(file.read_at(0, &mut read).expect("it is read"), 7);
    assert_eq!(&read, b"written");
    assert_eq!(fs.root().id().tree, TreeId::FS);
}

/// A volume does not become writable if another program wrote it, if its log was not replayed, or
/// if damage was ignored at the opening. The volume stays as it was.
#[test]
fn a_volume_that_must_not_be_written_stays_read_only() {
    let device = memory(256);
    let refused = |fs: &Filesystem, word: &str| {
        let error = fs.set_read_only(false).expect_err("it is not woken");
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error:?}");
        let text = format!("{error:?}");
        assert!(text.contains(word), "no {word:?} in {text}");
        assert!(fs.read_only_reason().is_some());
        fs.root().lookup(b"file").expect("it is read as before");
    };
    let fs = mount(&device);
    let file = file_with(&fs.root(), "file", b"x");
    fs.sync().expect("a commit");
    file.write_at(0, b"in a log").expect("room");
    file.sync().expect("a log");
    let logged: Arc<dyn Device> = Arc::new(copy(&*device));
    fs.close().expect("everything durable");
    refused(&opened_for_reading(&logged, "ro,nologreplay"), "log");
    refused(&opened_for_reading(&device, "ro,rescue=ignoredatacsums"), "read-only");

    let reader = opened_for_reading(&device, "ro");
    let writer = mount(&device);
    file_with(&writer.root(), "other", b"x");
    writer.close().expect("everything durable");
    refused(&reader, "another program");
    refused(&reader, "read-only");
    drop(reader);
    check(&device);
}
