//! Paths of about the greatest length in a stream. We send the paths that Linux sends, and refuse
//! the paths that Linux refuses.

use std::os::fd::OwnedFd;
use std::path::Path;

use buttress_fs::{Filesystem, TreeId};
use buttress_interop::linux::{Images, has_linux_btrfs, try_run};
use buttress_send::{Error, SendOptions, send};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, XattrFlags};

use crate::open::{close, open};

/// Bytes that the directories' names and the slashes behind them take.
const DIRS: usize = 16 * 255;

/// Opens the last of 16 nested directories, and makes missing directories.
fn bottom(top: &Path, below: usize) -> OwnedFd {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY;
    let mut at = rustix::fs::openat(CWD, top, flags, Mode::empty()).expect("the top");
    for _ in 0..below {
        let name = "d".repeat(254);
        let made = rustix::fs::mkdirat(&at, &name, Mode::RWXU);
        assert!(matches!(made, Ok(()) | Err(rustix::io::Errno::EXIST)), "{made:?}");
        at = rustix::fs::openat(&at, &name, flags, Mode::empty()).expect("a directory");
    }
    at
}

fn file(dir: &OwnedFd, name: &str) -> OwnedFd {
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = rustix::fs::openat(dir, name, flags, Mode::RUSR).expect("a file");
    rustix::io::write(&file, b"content").expect("written");
    file
}

/// Changes the subvolume `top` so that its stream needs a path of `len` bytes.
type Change = fn(top: &Path, len: usize);

const CHANGES: [(&str, Change); 6] = [
    ("a file", |top, len| _ = file(&bottom(top, 16), &"f".repeat(len - DIRS))),
    ("a directory", |top, len| {
        let name = "f".repeat(len - DIRS);
        rustix::fs::mkdirat(bottom(top, 16), &name, Mode::RWXU).expect("a directory");
    }),
    ("a symbolic link", |top, len| {
        let name = "f".repeat(len - DIRS);
        rustix::fs::symlinkat("target", bottom(top, 16), &name).expect("a link");
    }),
    ("a second name", |top, len| {
        let name = "f".repeat(len - DIRS);
        let (from, to) = (bottom(top, 0), bottom(top, 16));
        rustix::fs::linkat(&from, "short", &to, &name, AtFlags::empty()).expect("a name");
    }),
    ("another name", |top, len| {
        let name = "f".repeat(len - DIRS);
        let (from, to) = (bottom(top, 0), bottom(top, 16));
        rustix::fs::renameat(&from, "short", &to, &name).expect("a name");
    }),
    // The file "moving/.../deep" has its directory renamed, and gets an attribute.
    ("a longer way", |top, len| {
        let (from, to) = (bottom(top, 0), bottom(top, 16));
        let deep = rustix::fs::openat(&from, "moving/deep", OFlags::RDONLY, Mode::empty());
        let flags = XattrFlags::empty();
        rustix::fs::fsetxattr(deep.expect("it is there"), "user.x", b"1", flags).expect("set");
        let name = "m".repeat(len - DIRS - "/deep".len());
        rustix::fs::renameat(&from, "moving", &to, &name).expect("a name");
    }),
];

fn tree(filesystem: &Filesystem, name: &str) -> TreeId {
    filesystem.resolve(name).expect("a snapshot").id().tree
}

/// Every kind of long path, in full and incremental streams. Both senders agree. Our refusal comes
/// before the first byte of the stream and names the path.
#[test]
fn long_paths_are_refused_where_linux_refuses() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 1 << 30);
    images.mkfs(&[]);
    let mount = images.mount("");
    mount.shell("btrfs -q subvolume create base; mkdir base/moving");
    drop(bottom(&mount.path().join("base"), 16));
    drop(file(&bottom(&mount.path().join("base"), 0), "short"));
    drop(file(&bottom(&mount.path().join("base/moving"), 0), "deep"));
    mount.shell("btrfs -q property set base ro true");
    let mut cases = Vec::new();
    for (index, (what, change)) in CHANGES.iter().enumerate() {
        for len in [4094, 4095, 4096, 4130] {
            let name = format!("s{index}-{len}");
            mount.shell(&format!("btrfs -q subvolume snapshot base {name}"));
            change(&mount.path().join(&name), len);
            mount.shell(&format!("btrfs -q property set {name} ro true"));
            cases.push((*what, len, name));
        }
    }
    let path = |name: &str| mount.path().join(name).display().to_string();
    let (base, to) = (path("base"), images.scratch().join("stream").display().to_string());
    let linux = cases.iter().map(|(_, _, name)| {
        let whole = try_run("btrfs", ["-q", "send", "-f", &to, &path(name)]);
        let part = try_run("btrfs", ["-q", "send", "-p", &base, "-f", &to, &path(name)]);
        [whole.is_ok(), part.is_ok()]
    });
    let linux: Vec<_> = linux.collect();
    mount.unmount();
    let filesystem = open(images.paths(), false);
    let base = tree(&filesystem, "base");
    for ((what, len, name), linux) in cases.into_iter().zip(linux) {
        for (parent, linux) in [None, Some(base)].into_iter().zip(linux) {
            let mut options = SendOptions::new(tree(&filesystem, &name));
            options.parent = parent;
            let mut stream = Vec::new();
            let sent = send(&filesystem, &options, &mut stream);
            let case = format!("{what}, {len} bytes, with parent: {}", parent.is_some());
            assert_eq!(sent.is_ok(), linux, "{case}: {:?}", sent.err());
            let Err(error) = sent else { continue };
            assert!(matches!(error, Error::PathTooLong { .. }), "{case}: {error}");
            let text = error.to_string();
            assert!(text.starts_with("dddd") && text.contains("File name too long"), "{text}");
            assert!(text.len() < 250, "{text}");
            assert!(stream.is_empty(), "{case}: {} bytes were sent", stream.len());
        }
    }
    close(filesystem);
}
