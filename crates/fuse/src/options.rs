//! How a volume is shown to the kernel: the mount options of the front end, not of the volume.

use std::time::Duration;

use crate::{Error, IdMap};

/// Above this number, the table drops handles of inodes that are not open. A handle takes 1.5 KiB.
/// At most half of the memory for known inodes is for handles.
const HANDLES_MAX: usize = 1 << 12;

/// Above this number the kernel is told to forget inodes. An inode takes 64 bytes.
const KNOWN_MAX: usize = 1 << 19;

/// The memory of an inode with a handle, and of one without, in bytes.
pub(crate) const HANDLE_BYTES: usize = 1536;
pub(crate) const KNOWN_BYTES: usize = 64;

/// Options that [`Options::accept`] takes. The error message about an unknown option names similar
/// options of this list.
pub const KNOWN: &[&str] = &[
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "atime",
    "noatime",
    "relatime",
    "strictatime",
    "nostrictatime",
    "nodiratime",
    "diratime",
    "sync",
    "async",
    "dirsync",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "comment=TEXT",
    "allow_other",
    "default_permissions",
    "fsname=NAME",
    "uidmap=VOLUME:HERE:COUNT",
    "gidmap=VOLUME:HERE:COUNT",
    "idmap=user",
    "user_subvol_rm_allowed",
    "submounts",
    "nosubmounts",
    "threads=N",
    "handoff",
    "nohandoff",
    "busy_poll=MICROSECONDS",
    "io_uring",
    "noio_uring",
    "nofuseblk",
    "io_uring_q_depth=N",
    "writeback_cache",
    "nowriteback_cache",
    "read_ahead=KIB",
    "defaults",
];

/// The front end's own options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The source that `/proc/mounts` shows.
    pub source: String,
    /// About how many nodes keep a handle that takes 1.5 KiB ([`crate::node`]). Open inodes may
    /// exceed this number.
    pub handles_max: usize,
    /// About how many inodes the kernel may know. Above this number the kernel is told to forget
    /// unused inodes.
    pub known_max: usize,
    /// How many bytes of memory the entries of io_uring may keep while no large request uses them.
    pub request_bytes_max: u64,
    /// Whether the kernel refuses all changes.
    pub read_only: bool,
    /// With `read_only`: a mount may become writable later.
    pub may_begin_writing: bool,
    /// Whether other users see the mount; `None` means yes for mounts of root, and no for all
    /// others.
    pub allow_other: Option<bool>,
    /// Whether set-user-id bits count; never for mounts without root rights.
    pub suid: bool,
    /// Whether device nodes work; never for mounts without root rights.
    pub dev: bool,
    /// Whether programs can be run.
    pub exec: bool,
    /// Whether reads must reach the server, so that it can update access times (`strictatime`). The
    /// kernel then drops the cached data of a file at each open. It caches no targets of symbolic
    /// links and no listings of directories.
    pub strict_access: bool,
    /// Whether every write waits for the disk.
    pub sync: bool,
    /// Whether every change of a directory waits for the disk.
    pub dirsync: bool,
    /// Whether users other than root may delete subvolumes that they can write to, by ioctl(2).
    pub user_subvol_rm: bool,
    /// Whether each subvolume is mounted by itself, with a device number of its own.
    pub submounts: bool,
    /// Whether the kernel's mount shows the whole volume, so that further mounts can share it. The
    /// caller may set this if [`can_share`](crate::can_share) returns true.
    pub shared: bool,
    /// Whether the mount options permit the caller to set `block_device`.
    pub may_be_block_device: bool,
    /// Whether `source` is a block device that the kernel claims and mounts itself (`fuseblk`).
    /// Then `sync` and syncfs(2) reach the server, and an unmount waits until the volume is closed.
    /// Needs `shared`. The caller must have given up its own claim on the device.
    pub block_device: bool,
    /// The number of threads that read requests. With `None`, the number of processors decides.
    pub threads: Option<usize>,
    /// Whether one thread reads requests and wakes others as needed. Otherwise all threads read at
    /// once.
    pub handoff: bool,
    /// How long the reading thread polls for the next request before it sleeps. With zero, it does
    /// not poll.
    pub busy_poll: Duration,
    /// Whether the kernel gathers small writes in its page cache before it sends them.
    pub writeback_cache: bool,
    /// Whether requests come by io_uring; `None` means yes, if the kernel offers io_uring.
    pub io_uring: Option<bool>,
    /// The number of requests that io_uring brings at once for each processor.
    pub io_uring_depth: usize,
    /// How far the kernel reads ahead, in KiB.
    pub read_ahead_kib: u32,
    /// With `read_only`: another machine writes the volume. The mount looks for a newer commit
    /// after each interval.
    pub follow: Option<Duration>,
    /// The map of the volume's users to users of this machine.
    pub users: IdMap,
    /// The map of the volume's groups to groups of this machine.
    pub groups: IdMap,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            source: "buttress".to_owned(),
            handles_max: HANDLES_MAX,
            known_max: KNOWN_MAX,
            request_bytes_max: 64 << 20,
            read_only: false,
            may_begin_writing: false,
            allow_other: None,
            suid: true,
            dev: true,
            exec: true,
            strict_access: false,
            sync: false,
            dirsync: false,
            user_subvol_rm: false,
            submounts: false,
            shared: false,
            may_be_block_device: true,
            block_device: false,
            threads: None,
            handoff: true,
            busy_poll: Duration::from_micros(100),
            writeback_cache: true,
            io_uring: None,
            io_uring_depth: 8,
            read_ahead_kib: 2048,
            follow: None,
            users: IdMap::default(),
            groups: IdMap::default(),
        }
    }
}

impl Options {
    /// Limits the memory for inodes that the kernel knows to about `inode_bytes`. At most one half
    /// is for handles of inodes that are open or were used last, the rest for records of all.
    /// Limits the memory of requests to about `request_bytes`.
    pub fn keep_within(&mut self, inode_bytes: u64, request_bytes: u64) {
        self.request_bytes_max = request_bytes;
        let all = usize::try_from(inode_bytes).unwrap_or(usize::MAX);
        self.handles_max = (all / 2 / HANDLE_BYTES).min(HANDLES_MAX);
        let left = all - self.handles_max * HANDLE_BYTES;
        self.known_max = (left / KNOWN_BYTES).min(KNOWN_MAX);
    }

    /// Takes one mount option, and returns whether it is an option of the front end. `ro`, `rw` and
    /// the options on access times concern the volume too, and should be passed to the volume as
    /// well.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] when the option is known and its value is wrong.
    pub fn accept(&mut self, option: &str) -> Result<bool, Error> {
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dirsync = true,
            "allow_other" => self.allow_other = Some(true),
            "user_subvol_rm_allowed" => self.user_subvol_rm = true,
            "submounts" => self.submounts = true,
            "nosubmounts" => self.submounts = false,
            "handoff" => self.handoff = true,
            "nohandoff" => self.handoff = false,
            "io_uring" => self.io_uring = Some(true),
            "noio_uring" => self.io_uring = Some(false),
            "nofuseblk" => self.may_be_block_device = false,
            "writeback_cache" => self.writeback_cache = true,
            "nowriteback_cache" => self.writeback_cache = false,
            // mount(8) decides which users may mount. A later option may give back the rights that
            // `user` or `owner` takes away.
            "user" | "users" => (self.suid, self.dev, self.exec) = (false, false, false),
            "owner" | "group" => (self.suid, self.dev) = (false, false),
            // Options for mount(8), systemd and other readers of fstab.
            "nouser" | "nousers" | "noowner" | "nogroup" | "auto" | "noauto" | "nofail"
            | "_netdev" => {}
            "strictatime" => self.strict_access = true,
            "noatime" | "relatime" | "nostrictatime" => self.strict_access = false,
            // The kernel always checks permissions.
            "defaults" | "default_permissions" | "nodiratime" | "diratime" | "atime" => {}
            valued => return self.accept_valued(valued),
        }
        Ok(true)
    }

    fn accept_valued(&mut self, option: &str) -> Result<bool, Error> {
        if option.starts_with("x-") || option.starts_with("X-") {
            return Ok(true);
        }
        let refuse = |expected| Err(Error::Option { option: option.to_owned(), expected });
        match option.split_once('=') {
            Some(("comment", _)) => {}
            Some(("user", _)) => (self.suid, self.dev, self.exec) = (false, false, false),
            Some(("fsname", name)) => name.clone_into(&mut self.source),
            Some(("threads", count)) => match count.parse() {
                Ok(count @ 1..=256) => self.threads = Some(count),
                _ => return refuse("a number from 1 to 256"),
            },
            Some(("io_uring_q_depth", depth)) => match depth.parse() {
                Ok(depth @ 1..=256) => self.io_uring_depth = depth,
                _ => return refuse("a number from 1 to 256"),
            },
            Some(("busy_poll", micros)) => match micros.parse() {
                Ok(micros @ 0..=10_000) => self.busy_poll = Duration::from_micros(micros),
                _ => return refuse("a number of microseconds from 0 to 10000"),
            },
            Some(("read_ahead", kib)) => match kib.parse() {
                Ok(kib @ 4..=65536) => self.read_ahead_kib = kib,
                _ => return refuse("a number of KiB from 4 to 65536"),
            },
            Some(("uidmap", map)) if self.users.add(map) => {}
            Some(("gidmap", map)) if self.groups.add(map) => {}
            Some(("uidmap" | "gidmap", _)) => {
                return refuse("VOLUME:HERE:COUNT, ranges that overlap no other");
            }
            Some(("idmap", "none")) => {
                (self.users, self.groups) = (IdMap::default(), IdMap::default());
            }
            Some(("idmap", "user")) => {
                let user = rustix::process::getuid().as_raw();
                let group = rustix::process::getgid().as_raw();
                if !self.users.add_root(user) || !self.groups.add_root(group) {
                    return refuse("no uidmap= or gidmap= that says another thing");
                }
            }
            Some(("idmap", _)) => return refuse("user or none"),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the number of threads that read requests: by default four for each processor, at
    /// least 8 and at most 16. A thread that waits in an fsync, or for a read from the device,
    /// serves no other request.
    pub(crate) fn thread_count(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        self.threads.unwrap_or_else(|| (processors * 4).clamp(8, 16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every option in the list of known ones is accepted, and a misspelt one is not.
    #[test]
    fn known_options_are_accepted() {
        for known in KNOWN {
            let option = known
                .replace("=NAME", "=disk")
                .replace("=TEXT", "=words")
                .replace("=VOLUME:HERE:COUNT", "=0:1000:1")
                .replace("=N", "=3")
                .replace("=KIB", "=128")
                .replace("=MICROSECONDS", "=50");
            assert!(Options::default().accept(&option).expect(known), "{option}");
        }
        assert!(!Options::default().accept("alow_other").expect("another option"));
    }

    /// `user` takes rights away, and a later option gives them back, as with mount(8).
    #[test]
    fn user_implies_restrictions() {
        let rights = |list: &str| {
            let mut options = Options::default();
            for option in list.split(',') {
                assert!(options.accept(option).expect("known"), "{option}");
            }
            (options.suid, options.dev, options.exec)
        };
        assert_eq!(rights("user"), (false, false, false));
        assert_eq!(rights("users,exec"), (false, false, true));
        assert_eq!(rights("owner"), (false, false, true));
        assert_eq!(rights("user=me,suid,dev,exec"), (true, true, true));
        assert_eq!(
            rights("x-systemd.automount,X-mount.mkdir,comment=a,noauto,nofail"),
            (true, true, true)
        );
    }

    /// The error for a value out of range names the range.
    #[test]
    fn wrong_values_say_what_is_right() {
        let error =
            Options::default().accept("threads=0").expect_err("zero loops serve no request");
        assert_eq!(error.to_string(), "mount option threads=0 needs a number from 1 to 256");
    }
}
