//! Code that `ls`, `tree` and `stat` share: sorted names with their attributes, and modes in
//! letters.

use std::ops::ControlFlow;

use buttress_base::text;
use buttress_fs::{Attr, FileKind, Inode, Timespec};
use serde::Serialize;

/// One name of a directory.
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// The object that it names.
    pub inode: Inode,
    /// The attributes of the object.
    pub attr: Attr,
}

/// The names of a directory, sorted by their bytes.
pub fn entries(dir: &Inode) -> buttress_fs::Result<Vec<Entry>> {
    let mut names = Vec::new();
    dir.read_dir(0, |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })?;
    names.sort_unstable();
    let entry = |name: Vec<u8>| {
        let inode = dir.lookup(&name)?;
        let attr = inode.attr();
        Ok(Entry { name, inode, attr })
    };
    names.into_iter().map(entry).collect()
}

/// An entry for scripts. Names have the form of `buttress_control::names`.
#[derive(Serialize)]
pub struct EntryDocument {
    name: String,
    ino: u64,
    subvolume: u64,
    kind: &'static str,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    allocated: u64,
    mtime: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl EntryDocument {
    /// Describes one inode by one of its names.
    pub fn new(name: &[u8], attr: &Attr, target: Option<&[u8]>) -> Self {
        Self {
            name: text::encode(name),
            ino: attr.id.ino.0,
            subvolume: attr.id.tree.0,
            kind: kind_name(attr.kind),
            mode: format!("{:o}", attr.mode & 0o7777),
            links: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            allocated: attr.blocks.saturating_mul(512),
            mtime: seconds(attr.mtime),
            target: target.map(text::encode),
        }
    }
}

fn seconds(time: Timespec) -> f64 {
    time.sec as f64 + f64::from(time.nsec) / 1e9
}

/// The kind in words.
pub fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Character => "character device",
        FileKind::Block => "block device",
        FileKind::Fifo => "named pipe",
        FileKind::Socket => "socket",
    }
}

/// The mode in letters, as `ls` shows it: `drwxr-xr-x`.
pub fn letters(attr: &Attr) -> String {
    let kind = match attr.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Character => 'c',
        FileKind::Block => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let mut text = String::from(kind);
    let special = [(0o4000, 's'), (0o2000, 's'), (0o1000, 't')];
    for (class, (bit, letter)) in special.into_iter().enumerate() {
        let bits = attr.mode >> (6 - 3 * class);
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (attr.mode & bit != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}
