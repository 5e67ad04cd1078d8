//! Lets one process at a time mount a volume. Of several processes that begin together, one serves
//! and the others join it.
//!
//! # Invariants
//!
//! - **T1** A process that has the lock of an image either finds a server of the image or becomes
//!   the server.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use buttress_block::LockFile;
use buttress_remote::{Place, StoreKind, host_file, is_remote};

/// The longest name of a place in a bucket in the name of a lock, in bytes.
const STORE_NAME_MAX: usize = 200;

/// The lock that a process takes to mount an image. Dropping this value ends the lock.
#[derive(Debug)]
pub struct MountLock {
    _file: LockFile,
}

impl MountLock {
    /// Waits for the lock. Returns `None` at once if there is no folder for the lock.
    pub fn wait(image: &Path) -> Option<Self> {
        let taken = || -> std::io::Result<LockFile> {
            let path = crate::sockets::folder()?.join(format!("{}.turn", lock_name(image)?));
            let file = File::options().create(true).append(true).open(path)?;
            LockFile::wait(file)
        };
        let file = taken().inspect_err(|error| {
            tracing::debug!(%error, "mounts of the volume take no turns");
        });
        Some(Self { _file: file.ok()? })
    }
}

/// Names the lock of an image: by its file, by the folder of its store, or by its place in a
/// bucket. The options of a place are not in the name: mounts that differ in them have the same
/// volume.
fn lock_name(image: &Path) -> std::io::Result<String> {
    let of_file = |path: &Path| {
        let found = path.metadata()?;
        Ok(format!("{:x}-{:x}", found.dev(), found.ino()))
    };
    if !is_remote(image) {
        return of_file(&host_file(image));
    }
    let Place { kind, prefix, .. } = Place::parse(image).map_err(std::io::Error::other)?;
    if kind == StoreKind::Folder {
        return of_file(&Path::new("/").join(prefix));
    }
    let place = format!("{kind:?} {prefix}");
    let mut escaped = String::new();
    for byte in place.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("_{byte:02x}")),
        }
    }
    // A longer place is cut to what fits a name of a file. Two places with equal ends wait for each
    // other, which costs time only.
    let cut = escaped.len().saturating_sub(STORE_NAME_MAX);
    Ok(format!("store-{}", &escaped[cut..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T1: names of one volume have one lock, with any options. Other volumes have other locks.
    #[test]
    fn names_of_a_volume_have_one_lock() {
        let dir = tempfile::tempdir().expect("a folder");
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        std::fs::create_dir(&one).expect("a folder");
        std::fs::create_dir(&two).expect("a folder");
        let name = |text: &str| lock_name(Path::new(text)).expect("a name");
        let folder = |path: &Path| format!("file://{}", path.display());
        assert_eq!(name(&folder(&one)), name(&format!("{}?max-lag=1s", folder(&one))));
        assert_ne!(name(&folder(&one)), name(&folder(&two)));
        assert_eq!(name("s3://bucket/a"), name("s3://bucket/a?region=here"));
        assert_ne!(name("s3://bucket/a"), name("s3://bucket/b"));
        assert_ne!(name("s3://bucket/a"), name("s3://bucket2/a"));
        assert_ne!(name("s3://bucket/a-b"), name("s3://bucket/a_2db"));
        assert!(name(&format!("s3://bucket/{}", "long/".repeat(90))).len() < 250);
        lock_name(Path::new("file:///nothing/is/here")).expect_err("there is no folder");
    }
}
