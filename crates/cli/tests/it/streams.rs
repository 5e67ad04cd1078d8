//! Subvolumes are sent as streams from one running mount to another.

use std::process::Stdio;

use crate::checker::check;
use crate::live::{Mounted, has, run};
use crate::text;

/// One mount receives the streams that another mount sends, even incremental ones, while programs
/// use both mounts. Images can receive the same streams.
#[test]
fn mounts_send_and_receive() {
    if !has(&["fusermount3", "diff"], Some("/dev/fuse")) {
        return;
    }
    let (from, to) = (crate::bench(), crate::bench());
    from.ok(&["mkfs", "image", "--size", "256M"]);
    to.ok(&["mkfs", "image", "--size", "256M"]);
    let (one, other) = (Mounted::new(&from, &[]), Mounted::new(&to, &[]));
    let (source, target) = (from.path("mnt"), to.path("mnt"));
    let file = |number: u32| source.join(format!("home/file{number}"));
    from.ok(&["subvolume", "create", "mnt/home"]);
    for number in 0..50 {
        std::fs::write(file(number), vec![number as u8; 1 + 4000 * number as usize]).expect("it");
    }
    from.ok(&["subvolume", "snapshot", "-r", "mnt/home", "mnt/first"]);
    std::fs::remove_file(file(7)).expect("it is there");
    std::fs::rename(file(8), file(7)).expect("it is there");
    std::fs::write(file(60), "a new one").expect("it is written");
    from.ok(&["subvolume", "snapshot", "-r", "mnt/home", "mnt/second"]);

    let pass = |words: &[&str]| {
        let mut sender = from.command(words);
        let mut sender = sender.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut receiver = to.command(&["receive", "mnt"]);
        receiver.stdin(sender.stdout.take().expect("piped"));
        assert!(receiver.status().expect("it runs").success());
        assert!(sender.wait().expect("it ends").success());
    };
    pass(&["send", "mnt/first"]);
    pass(&["send", "-p", "mnt/first", "mnt/second"]);
    for name in ["first", "second"] {
        run("diff", &["-r", text(&source.join(name)), text(&target.join(name))]);
    }
    let refused = std::fs::write(target.join("second/more"), "x").expect_err("it is read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

    // The stream of a mount is equal to the stream of its image.
    from.ok(&["send", "-f", "mounted.stream", "mnt/second"]);
    from.fails(&["send", "-f", "none.stream", "mnt/home"], 1, &["is not read-only"]);
    // If a receiver goes away, the verb ends and the mount goes on.
    let mut cut = from.command(&["send", "mnt/second"]);
    let mut cut = cut.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    drop(cut.stdout.take());
    cut.wait().expect("it ends");
    // The verb also ends if a sender sends no stream.
    let mut wrong = to.command(&["receive", "mnt"]);
    let mut wrong = wrong.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    assert!(!wrong.wait().expect("it ends").success());
    one.end();
    other.end();
    from.ok(&["send", "-f", "image.stream", "image:/second"]);
    let bytes = |name| std::fs::read(from.path(name)).expect("it was written");
    assert!(bytes("mounted.stream") == bytes("image.stream"), "the streams differ");
    check(&from.path("image"));
    check(&to.path("image"));
}
