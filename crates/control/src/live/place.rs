//! Where a path of the host lies: on which file system, and which mount of ours serves that.
//!
//! # Invariants
//!
//! - **P1** Nothing is taken for a part of a volume by its name. The number of the device that a
//!   path is on says what the path belongs to. It is the number of a mount, or with `-o submounts`
//!   of one of its subvolumes. So what others have mounted inside of a mount is not ours, and what
//!   of ours is bound elsewhere is.
//! - **P2** What is found has its mount at its place yet: errors and later questions name the
//!   volume by it.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use buttress_fuse::Listed;
use rustix::fs::{Mode, OFlags};

use super::Subject;
use super::ask::{Answer, ask, reachable};
use crate::closing::TYPES;
use crate::exit::{Exit, Failure, Result};

/// Asks for the mounts of subvolumes. It is asked apart: while subvolumes are being mounted, the
/// answer waits.
pub(super) const QUESTION: &str = "submounts";

/// A mount that serves a path, and the way to the path from the mount's top.
#[derive(Debug)]
pub struct Served {
    /// The socket of the server.
    pub socket: PathBuf,
    /// What the server told.
    pub answer: Answer,
    /// The top of the mount.
    pub target: PathBuf,
    /// The path within that mount.
    pub within: PathBuf,
}

/// What is mounted where a path lies.
#[derive(Debug, PartialEq, Eq)]
struct Ground {
    device: u64,
    kind: String,
    /// Where it is mounted.
    point: PathBuf,
    /// The way from the top of the file system, not from where it is mounted: those differ where a
    /// folder is bound.
    within: PathBuf,
}

impl Ground {
    /// Of a whole path that is there; nothing where the list of mounts cannot be read.
    fn of(path: &Path) -> Option<Self> {
        let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let device = rustix::fs::fstat(&opened).ok()?.st_dev;
        let info = format!("/proc/self/fdinfo/{}", opened.as_raw_fd());
        let info = std::fs::read_to_string(info).ok()?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        Self::listed(&Listed::all().ok()?, id.trim().parse().ok()?, device, path)
    }

    /// By the entry of the list with the number `id`.
    fn listed(list: &[Listed], id: u64, device: u64, path: &Path) -> Option<Self> {
        let mount = list.iter().find(|mount| mount.id == id)?;
        let below = path.strip_prefix(&mount.point).ok()?;
        let within = mount.top.strip_prefix("/").ok()?.join(below);
        Some(Self { device, kind: mount.kind.clone(), point: mount.point.clone(), within })
    }
}

/// A mount of ours from this image or block device, the last that was made.
pub fn mounted_from(source: &Path) -> Option<Listed> {
    let all = Listed::all().ok()?.into_iter().rev();
    all.into_iter().find(|mount| is_ours(mount) && mount.source == source)
}

/// All mounts of the same file system, this one too if it is there yet. The device number alone
/// may be another file system's once this one has ended.
///
/// # Errors
///
/// Those of reading the list.
pub fn all_of_same(mount: &Listed) -> std::io::Result<Vec<Listed>> {
    let mut all = Listed::all()?;
    all.retain(|other| other.device == mount.device && other.source == mount.source);
    Ok(all)
}

/// Whether a mount is one of ours.
pub fn is_ours(mount: &Listed) -> bool {
    TYPES.contains(&mount.kind.as_str())
}

/// Where subvolumes of a server's mount have mounts of their own.
pub fn submounts(socket: &Path) -> Vec<PathBuf> {
    let text = ask(socket, QUESTION, None).unwrap_or_default();
    // One that does not know the question answers another.
    let found: Vec<(Vec<u8>, u64)> = serde_json::from_str(&text).unwrap_or_default();
    found.into_iter().map(|(place, _)| PathBuf::from(OsString::from_vec(place))).collect()
}

/// What of a path is there, and the name that is to be made in it.
fn there(path: &Path) -> Option<(PathBuf, PathBuf)> {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(whole), ..) => Some((whole, PathBuf::new())),
        (Err(_), Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Some((parent.canonicalize().ok()?, PathBuf::from(name)))
        }
        _ => None,
    }
}

/// The mount of this user that serves a path that is there or is to be made. None where it has
/// nothing to do with a mount of ours.
///
/// # Errors
///
/// Where it lies on something else that is mounted inside of one, or on a mount that no server
/// answers for (P1, P2).
pub fn served(path: &Path) -> Result<Option<Served>> {
    let Some((whole, name)) = there(path) else { return Ok(None) };
    let Some(ground) = Ground::of(&whole) else { return Ok(None) };
    let refuse =
        |what: String| Err(Failure::new(Exit::Failure, format!("{}: {what}", path.display())));
    let all = reachable().into_iter();
    let mut mounts = all.filter_map(|(socket, answer)| {
        let target = answer.subject.target.clone()?;
        Some(Served { socket, answer, target, within: PathBuf::new() })
    });
    let point = ground.point.display();
    if !TYPES.contains(&ground.kind.as_str()) {
        let above = mounts
            .find(|mount| whole.starts_with(&mount.target) && mount.answer.subject.is_mounted());
        let Some(above) = above else { return Ok(None) };
        return refuse(format!(
            "not on the volume that is mounted at {}, but on {} at {point}: name a place outside of that, or unmount it",
            above.target.display(),
            ground.kind,
        ));
    }
    let Some((mut served, top)) =
        mounts.find_map(|mount| top(&ground, &mount).map(|top| (mount, top)))
    else {
        return refuse(format!(
            "no mount of this user answers for {point}: ask as the user who mounted it"
        ));
    };
    if !served.answer.subject.is_mounted() {
        let target = served.target.display();
        return refuse(format!(
            "its mount at {target} was taken away or covered: mount the volume anew"
        ));
    }
    served.within = top.join(&ground.within).join(name);
    Ok(Some(served))
}

/// The way from the top of a mount to that of the file system, if that is its own or a subvolume's.
fn top(ground: &Ground, mount: &Served) -> Option<PathBuf> {
    let Subject { device, .. } = mount.answer.subject;
    if device.map_or(mount.target == ground.point, |own| own == ground.device) {
        return Some(PathBuf::new());
    }
    let text = ask(&mount.socket, QUESTION, None).ok()?;
    // One that does not know the question answers another.
    let submounts: Vec<(Vec<u8>, u64)> = serde_json::from_str(&text).ok()?;
    let (place, _) = submounts.into_iter().find(|(_, device)| *device == ground.device)?;
    let place = PathBuf::from(OsString::from_vec(place));
    place.strip_prefix(&mount.target).ok().map(Path::to_owned)
}

/// On what a path of the host lies, for a message: the kind of file system and its mount point.
pub fn ground(path: &Path) -> Option<String> {
    let ground = Ground::of(&there(path)?.0)?;
    Some(format!("{} at {}", ground.kind, ground.point.display()))
}

/// Says why a folder is no image, and what of it is one.
pub fn no_image(folder: &Path) -> Failure {
    let what = match served(folder) {
        Err(failure) => return failure,
        Ok(Some(Served { answer, target, .. })) => format!(
            "on the mount at {}: this verb opens the volume itself, {}, when it is not mounted",
            target.display(),
            answer.subject.image.display()
        ),
        Ok(None) => match ground(folder) {
            Some(ground) => {
                format!("is a directory on {ground}, which is no mount of buttress")
            }
            None => "is a directory, and no image".to_owned(),
        },
    };
    Failure::new(Exit::Failure, format!("{}: {what}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[u8] = b"22 1 0:20 / / rw shared:1 - ext4 /dev/vda rw\n\
        40 22 0:50 / /mnt/with\\040space rw - fuse.buttress /a rw,user_id=0\n\
        41 40 0:51 / /mnt/with\\040space/there rw shared:2 master:3 - tmpfs none rw\n\
        42 22 0:50 /dir/more /other rw - fuse.buttress /a rw\n";

    #[track_caller]
    fn is(id: u64, path: &str, kind: &str, point: &str, within: &str) {
        let list = Listed::parse(LIST);
        let ground = Ground::listed(&list, id, 7, Path::new(path)).expect("it is listed");
        let (kind, point, within) = (kind.to_owned(), point.into(), within.into());
        assert_eq!(ground, Ground { device: 7, kind, point, within });
    }

    /// P1: by the number of the mount, with names as they are, and from the top of the file system.
    #[test]
    fn the_list_says_what_a_path_is_on() {
        is(40, "/mnt/with space/x/y", TYPES[0], "/mnt/with space", "x/y");
        is(41, "/mnt/with space/there/x", "tmpfs", "/mnt/with space/there", "x");
        is(42, "/other/x", TYPES[0], "/other", "dir/more/x");
        assert_eq!(Ground::listed(&Listed::parse(LIST), 4, 7, Path::new("/other/x")), None);
    }

    /// The last mount at a place is the one that is seen there.
    #[test]
    fn mounts_are_found_by_their_place() {
        let all = Listed::parse(LIST);
        let of = |point: &str| all.iter().rev().find(|it| it.point == Path::new(point)).cloned();
        let found = of("/mnt/with space").expect("it is listed");
        assert!(is_ours(&found));
        assert_eq!(found.device_number(), rustix::fs::makedev(0, 50));
        assert_eq!((found.source, found.top), (PathBuf::from("/a"), PathBuf::from("/")));
        assert!(!is_ours(&of("/mnt/with space/there").expect("it is listed")));
        assert_eq!(of("/other").expect("it is listed").top, Path::new("/dir/more"));
        assert_eq!(of("/mnt"), None);
    }
}
