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
        // Names of others' mounts need not be UTF-8.
        Self::listed(&std::fs::read("/proc/self/mountinfo").ok()?, id.trim(), device, path)
    }

    /// By the line of the list that begins with `id`.
    fn listed(list: &[u8], id: &str, device: u64, path: &Path) -> Option<Self> {
        let fields = |line: &[u8]| line.split(|&byte| byte == b' ').map(unescape).collect();
        let mut lines = list.split(|&byte| byte == b'\n').map(fields);
        let fields: Vec<PathBuf> = lines
            .find(|fields: &Vec<PathBuf>| fields.first().is_some_and(|it| it == Path::new(id)))?;
        let point = fields.get(4)?.clone();
        let kind = fields.iter().skip_while(|field| *field != Path::new("-")).nth(1)?;
        let within = fields[3].strip_prefix("/").ok()?.join(path.strip_prefix(&point).ok()?);
        Some(Self { device, kind: kind.display().to_string(), point, within })
    }
}

/// A field of the list: what would divide fields or lines is written in octal.
fn unescape(field: &[u8]) -> PathBuf {
    let mut name = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| first == b'\\');
        let octal = octal.and_then(|digits| str::from_utf8(digits).ok());
        let (byte, behind) = match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => (byte, &behind[3..]),
            None => (first, behind),
        };
        name.push(byte);
        rest = behind;
    }
    PathBuf::from(OsString::from_vec(name))
}

/// What is mounted at a place, by the kernel's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The device number of what lies there.
    pub device: u64,
    /// Its type, as `fuse.buttress`.
    pub kind: String,
    /// What was mounted, by its name then.
    pub source: PathBuf,
    /// Where it is.
    pub point: PathBuf,
    /// The folder of the file system that is seen there, "/" but for a folder that is bound.
    pub top: PathBuf,
    /// Whether it refuses writes.
    pub is_read_only: bool,
}

impl Mounted {
    /// What is seen at `point`, which is a whole name without symbolic links. Asks no server, so
    /// that a dead one cannot keep the caller waiting.
    ///
    /// # Errors
    ///
    /// Those of reading the list.
    pub fn at(point: &Path) -> std::io::Result<Option<Self>> {
        let list = std::fs::read("/proc/self/mountinfo")?;
        Ok(Self::all(&list).into_iter().rev().find(|mounted| mounted.point == point))
    }

    /// A mount of ours from this image or block device, the last that was made.
    pub fn of_source(source: &Path) -> Option<Self> {
        let list = std::fs::read("/proc/self/mountinfo").ok()?;
        let all = Self::all(&list).into_iter().rev();
        all.into_iter().find(|mounted| mounted.is_ours() && mounted.source == source)
    }

    /// All mounts of the same file system, this one too if it is there yet. The device number
    /// alone may be another file system's once this one has ended.
    ///
    /// # Errors
    ///
    /// Those of reading the list.
    pub fn all_of_same(&self) -> std::io::Result<Vec<Self>> {
        let mut all = Self::all(&std::fs::read("/proc/self/mountinfo")?);
        all.retain(|other| other.device == self.device && other.source == self.source);
        Ok(all)
    }

    /// Every mount of the list; of several at one place the last is seen.
    fn all(list: &[u8]) -> Vec<Self> {
        list.split(|&byte| byte == b'\n').filter_map(Self::of_line).collect()
    }

    fn of_line(line: &[u8]) -> Option<Self> {
        let fields: Vec<PathBuf> = line.split(|&byte| byte == b' ').map(unescape).collect();
        let (major, minor) = fields.get(2)?.to_str()?.split_once(':')?;
        let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let mut behind = fields.iter().skip_while(|field| *field != Path::new("-")).skip(1);
        let kind = behind.next()?.display().to_string();
        let source = behind.next()?.clone();
        let (point, top) = (fields.get(4)?.clone(), fields[3].clone());
        let own = fields.get(5)?.to_str()?;
        let is_read_only = own.split(',').any(|word| word == "ro");
        Some(Self { device, kind, source, point, top, is_read_only })
    }

    /// Whether it is one of ours.
    pub fn is_ours(&self) -> bool {
        TYPES.contains(&self.kind.as_str())
    }
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
    fn is(id: &str, path: &str, kind: &str, point: &str, within: &str) {
        let ground = Ground::listed(LIST, id, 7, Path::new(path)).expect("it is listed");
        let (kind, point, within) = (kind.to_owned(), point.into(), within.into());
        assert_eq!(ground, Ground { device: 7, kind, point, within });
    }

    /// P1: by the number of the mount, with names as they are, and from the top of the file system.
    #[test]
    fn the_list_says_what_a_path_is_on() {
        is("40", "/mnt/with space/x/y", TYPES[0], "/mnt/with space", "x/y");
        is("41", "/mnt/with space/there/x", "tmpfs", "/mnt/with space/there", "x");
        is("42", "/other/x", TYPES[0], "/other", "dir/more/x");
        assert_eq!(Ground::listed(LIST, "4", 7, Path::new("/other/x")), None);
    }

    /// The last mount at a place is the one that is seen there.
    #[test]
    fn mounts_are_found_by_their_place() {
        let all = Mounted::all(LIST);
        let of = |point: &str| all.iter().rev().find(|it| it.point == Path::new(point)).cloned();
        let found = of("/mnt/with space").expect("it is listed");
        assert!(found.is_ours());
        assert_eq!(found.device, rustix::fs::makedev(0, 50));
        assert_eq!((found.source, found.top), (PathBuf::from("/a"), PathBuf::from("/")));
        assert!(!of("/mnt/with space/there").expect("it is listed").is_ours());
        assert_eq!(of("/other").expect("it is listed").top, Path::new("/dir/more"));
        assert_eq!(of("/mnt"), None);
    }

    /// What is no octal number stays.
    #[test]
    fn names_are_unescaped() {
        assert_eq!(unescape(b"a\\040b\\134c\\9\\"), Path::new("a b\\c\\9\\"));
    }
}
