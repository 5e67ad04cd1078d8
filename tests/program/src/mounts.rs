//! Copies of the table of mounts.
//!
//! `unshare --mount` copies the table with the mounts of all tests that run. While the copy of a
//! mount exists, an unmount of the mount ends at once and its server or device stays in use.
//!
//! # What must hold
//!
//! - A program that copies the table holds the lock exclusively from before the copy until it has
//!   dropped the copies of other programs' mounts.
//! - A test that unmounts shares the lock meanwhile. So no copy exists, and the unmount waits for
//!   the end of the volume.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The file with the lock. `xtask/src/guide.rs` has the same name.
const LOCK: &str = "buttress-mounts.lock";

/// Takes the lock, and becomes the program that copies the table.
const COPYING: &str =
    r#"exec 9<"$0" && flock 9 && exec unshare --mount --propagation private "$@""#;

/// Drops the copies, and gives the lock up. The list is read first, because it changes.
const DROPPING: &str = r#"
list=$(cat /proc/self/mountinfo)
printf '%s\n' "$list" | while read -r _ _ _ _ place _ rest; do
    case "$rest" in
        *'- fuse.buttress '* | *'- fuseblk.buttress '* | *'- btrfs /dev/loop'*) ;;
        *) continue ;;
    esac
    place=$(printf '%b' "$place")
    case "$place" in
        "$KEPT_MOUNTS"/*) ;;
        *) umount -i -l "$place" 2>/dev/null || : ;;
    esac
done
flock --unlock 9
exec 9<&-
"#;

/// The arguments with which `sh` runs a script in a namespace of mounts of its own. The namespace
/// keeps copies of mounts below the folder `kept` only. The first argument of the script is `$0`.
///
/// # Panics
///
/// If there is no place for temporary files, or a path is no text.
#[must_use]
pub fn in_own_namespace<'a>(
    kept: Option<&Path>,
    script: &str,
    args: impl IntoIterator<Item = &'a str>,
) -> Vec<String> {
    let text = |path: &Path| path.to_str().expect("a path that is text").to_owned();
    // The table has no links in its paths.
    let kept = kept.map(|kept| kept.canonicalize().expect("the folder is there"));
    let (path, _) = lock_file();
    // Without a folder, no place begins with this text.
    let kept =
        format!("KEPT_MOUNTS='{}'", kept.map_or_else(|| "none".to_owned(), |kept| text(&kept)));
    let script = format!("{kept}\n{DROPPING}{script}");
    let mut all: Vec<String> =
        ["-c", COPYING, &text(&path), "sh", "-c", &script].map(str::to_owned).into();
    all.extend(args.into_iter().map(str::to_owned));
    all
}

/// While this value lives, no program has copies of mounts.
#[derive(Debug)]
pub struct NoCopies(File);

impl NoCopies {
    /// Waits until no program has copies.
    ///
    /// # Panics
    ///
    /// If there is no place for temporary files.
    #[must_use]
    pub fn wait() -> Self {
        let (_, file) = lock_file();
        flock(&file, FlockOperation::LockShared).expect("a lock");
        Self(file)
    }
}

impl Drop for NoCopies {
    fn drop(&mut self) {
        // A program that another thread starts inherits the file until its `exec`.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// The file, open for reading: another user may own it.
fn lock_file() -> (PathBuf, File) {
    // The table belongs to the whole machine, so the place does not follow the environment.
    let path = Path::new("/tmp").join(LOCK);
    let file = File::open(&path).or_else(|_| {
        File::create(&path)?.set_permissions(Permissions::from_mode(0o644))?;
        File::open(&path)
    });
    let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (path, file)
}
