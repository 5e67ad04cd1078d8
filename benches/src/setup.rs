//! The setup of each file system under measurement, on a memory-backed image.
//!
//! # What must hold
//!
//! - A dropped setup leaves neither a mount, nor a loop device, nor an image.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_fs::{
    Filesystem, MountOptions,
    make::{MakeOptions, make},
};

use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    plan::Plan,
    subject::Subject,
    target::Target,
    told::{Commits, Requests, Told},
};

const SIZE: u64 = 6 << 30;

pub(crate) fn sh(program: &str, args: &[&str]) -> Result<String, String> {
    let out = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        return Err(format!("{program} {}: {}", args.join(" "), text.trim()));
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_string())
}

/// The first word of a command line that makes this program `buttress`. Measured mounts use this
/// program, because it is built with the feature `baselines`.
pub(crate) const PROGRAM: &str = "buttress";

/// Runs another program, or this one as `buttress`; returns its output.
fn buttress(program: Option<&Path>, args: &[&str]) -> Result<String, String> {
    if let Some(program) = program {
        return sh(&program.to_string_lossy(), args);
    }
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    sh(&own.to_string_lossy(), &[&[PROGRAM], args].concat())
}

/// Overwrites a new image with its own content, piece by piece.
fn write_through(image: &Path) -> Result<(), String> {
    let show = |error: std::io::Error| format!("{}: {error}", image.display());
    let file = File::options().read(true).write(true).open(image).map_err(show)?;
    let (len, there) = (file.metadata().map_err(show)?.len(), rustix::fs::fstatvfs(&file));
    let there = there.map(|there| there.f_bavail * there.f_frsize).map_err(|e| show(e.into()))?;
    if there < len {
        let (len, there) = (len >> 20, there >> 20);
        return Err(format!("an image of {len} MiB cannot be prefaulted, {there} MiB are free"));
    }
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let len = file.read_at(&mut piece, at).map_err(show)?;
        if len == 0 {
            return Ok(());
        }
        file.write_all_at(&piece[..len], at).map_err(show)?;
        at += len as u64;
    }
}

/// A new file system on a new image; unmounted and removed when dropped.
pub(crate) struct Setup {
    target: Target,
    image: PathBuf,
    mountpoint: PathBuf,
    loop_device: Option<String>,
    mounted: bool,
    options: String,
    /// The program that mounts a Buttress volume, if that is not this program.
    program: Option<PathBuf>,
    /// The process that serves the mount.
    server: Option<u32>,
    /// The empty server, and its output. Unranked: no other lock is taken under it.
    empty: Option<Mutex<Empty>>,
}

/// An empty server that runs.
struct Empty {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Setup {
    pub(crate) fn new(target: Target, dir: &Path) -> Result<Self, String> {
        Self::with(target, dir, SIZE, "", false, None)
    }

    /// An image of `size` bytes for a subject of a plan.
    pub(crate) fn of(subject: &Subject, plan: &Plan, size: u64) -> Result<Self, String> {
        Self::with(subject.target, &plan.dir, size, &subject.options, plan.prefault, None)
    }

    /// An image of `size` bytes for everyday loads. If `program` is given, it mounts the Buttress
    /// volume.
    pub(crate) fn everyday(
        subject: &Subject,
        dir: &Path,
        size: u64,
        program: Option<PathBuf>,
    ) -> Result<Self, String> {
        Self::with(subject.target, dir, size, &subject.options, false, program)
    }

    /// An image of `size` bytes. Buttress and Linux's btrfs mount the image with `options`. With
    /// `prefault`, all memory of the image is allocated before the first use, as on a real device.
    fn with(
        target: Target,
        dir: &Path,
        size: u64,
        options: &str,
        prefault: bool,
        program: Option<PathBuf>,
    ) -> Result<Self, String> {
        let stem = format!("buttress-bench-{}", std::process::id());
        let image = dir.join(format!("{stem}.img"));
        let mountpoint = std::env::temp_dir().join(format!("{stem}.mnt"));
        let _ = std::fs::remove_file(&image);
        std::fs::create_dir_all(&mountpoint).map_err(|e| e.to_string())?;
        let device = FileDevice::create(&image, size).map_err(|e| e.to_string())?;
        let path = image.to_string_lossy().into_owned();
        match target {
            Target::Ext4 | Target::Fuse2fs => {
                drop(device);
                sh("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0", &path])?;
            }
            _ => {
                make(&device, &MakeOptions::default()).map_err(|e| e.to_string())?;
                drop(device);
            }
        }
        if prefault {
            write_through(&image)?;
        }
        let loop_device = match target.needs_loop() {
            true => Some(sh("losetup", &["--find", "--show", &path])?),
            false => None,
        };
        let options = options.to_string();
        let mut setup = Self {
            target,
            image,
            mountpoint,
            loop_device,
            mounted: false,
            options,
            program,
            server: None,
            empty: None,
        };
        setup.mount()?;
        Ok(setup)
    }

    pub(crate) fn mount(&mut self) -> Result<(), String> {
        let dir = self.mountpoint.to_string_lossy().into_owned();
        let image = self.image.to_string_lossy().into_owned();
        let device = self.loop_device.clone().unwrap_or_default();
        match self.target {
            Target::Library | Target::Loop | Target::Raw => return Ok(()),
            Target::Mount | Target::MountLoop => {
                let image = self.device().to_string_lossy().into_owned();
                let mut args = vec!["mount", &image, &dir];
                if !self.options.is_empty() {
                    args.extend(["-o", &self.options]);
                }
                let told = buttress(self.program.as_deref(), &[&["--json"], &args[..]].concat())?;
                let told: Value = serde_json::from_str(&told).map_err(|e| e.to_string())?;
                self.server = told["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
            }
            Target::Empty => {
                let empty = Empty::start(&self.mountpoint, &self.options)?;
                self.server = Some(empty.child.id());
                self.empty = Some(Mutex::new(empty));
            }
            Target::Btrfs if !self.options.is_empty() => {
                sh("mount", &["-o", &self.options, &device, &dir])?;
            }
            Target::Btrfs | Target::Ext4 => {
                sh("mount", &[&device, &dir])?;
            }
            Target::Fuse2fs => {
                sh("fuse2fs", &[&image, &dir, "-o", "fakeroot"])?;
            }
        }
        self.mounted = true;
        Ok(())
    }

    pub(crate) fn unmount(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        sh("umount", &[&self.mountpoint.to_string_lossy()])?;
        self.server = None;
        if let Some(empty) = self.empty.take() {
            return empty.into_inner().child.wait().map(drop).map_err(|e| e.to_string());
        }
        // A FUSE server may still be writing when umount returns.
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.is_served() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Whether a program still serves the volume, as far as is known: a server of Buttress holds a
    /// lock until everything is durable.
    fn is_served(&self) -> bool {
        match self.target {
            Target::Mount | Target::MountLoop => {
                let opened = FileDevice::open(self.device(), OpenOptions::READ);
                matches!(opened, Err(buttress_block::Error::Locked { .. }))
            }
            Target::Fuse2fs => {
                let mut fuser = Command::new("fuser");
                let asked = fuser.arg("-s").arg(&self.image).stderr(Stdio::null()).status();
                asked.map_or(true, |status| status.success())
            }
            _ => false,
        }
    }

    /// The loop device, or the image if there is no loop device.
    pub(crate) fn device(&self) -> &Path {
        self.loop_device.as_ref().map_or(&self.image, |device| Path::new(device))
    }

    /// The counters of a folder's file system and of its device.
    pub(crate) fn told(&self) -> Told {
        if self.target.is_mount() {
            let folder = self.mountpoint.to_string_lossy();
            return buttress(self.program.as_deref(), &["--json", "stats", &folder])
                .map_or_else(|_| Told::default(), |text| Told::by_mount(&text));
        }
        Told { commits: self.btrfs_commits(), requests: self.loop_requests(), room: None }
    }

    /// The requests to the loop device. `None` if there is no such device.
    fn loop_requests(&self) -> Option<Requests> {
        let name = Path::new(self.loop_device.as_ref()?).file_name()?.to_str()?;
        Requests::of_block(&std::fs::read_to_string(format!("/sys/block/{name}/stat")).ok()?)
    }

    fn btrfs_commits(&self) -> Option<Commits> {
        if self.target != Target::Btrfs {
            return None;
        }
        let path = self.btrfs_folder()?.join("commit_stats");
        Commits::of_btrfs(&std::fs::read_to_string(path).ok()?)
    }

    /// The folder with the counters of Linux's btrfs for this volume.
    fn btrfs_folder(&self) -> Option<PathBuf> {
        let id = sh("findmnt", &["-no", "UUID", &self.mountpoint.to_string_lossy()]).ok()?;
        Some(PathBuf::from(format!("/sys/fs/btrfs/{id}")))
    }

    /// Limits the dirty bytes of this volume in Linux, if that is possible.
    pub(crate) fn bound_dirty(&self, bytes: u64) {
        use std::os::unix::fs::MetadataExt;
        // btrfs has a device number of its own, which its files show.
        let Ok(found) = std::fs::metadata(&self.mountpoint) else { return };
        let (major, minor) = (found.dev() >> 8, found.dev() & 0xff);
        let bdi = match (self.target, self.btrfs_folder()) {
            (Target::Btrfs, Some(own)) => own.join("bdi"),
            _ => PathBuf::from(format!("/sys/class/bdi/{major}:{minor}")),
        };
        for (name, value) in [("strict_limit", 1), ("max_bytes", bytes)] {
            if let Err(error) = std::fs::write(bdi.join(name), value.to_string()) {
                eprintln!("{}: {error}", bdi.join(name).display());
            }
        }
    }

    /// The process that serves the mount, if the kernel does not.
    pub(crate) fn server(&self) -> Option<u32> {
        self.server
    }

    /// The number of requests of each kind to the server.
    pub(crate) fn requests(&self) -> Result<Value, String> {
        if let Some(empty) = &self.empty {
            return empty.lock().requests();
        }
        let told = buttress(
            self.program.as_deref(),
            &["--json", "stats", &self.mountpoint.to_string_lossy()],
        )?;
        let told: Value = serde_json::from_str(&told).map_err(|e| e.to_string())?;
        Ok(told["sections"]["requests"].clone())
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.mountpoint
    }

    /// Opens the volume through the library.
    pub(crate) fn open(&self) -> Result<Filesystem, String> {
        self.open_on(Arc::new(self.file()?))
    }

    /// The file that the library opens.
    pub(crate) fn file(&self) -> Result<FileDevice, String> {
        let (path, direct) = match &self.loop_device {
            Some(device) => (PathBuf::from(device), true),
            None => (self.image.clone(), false),
        };
        let options = OpenOptions { direct, ..OpenOptions::WRITE };
        FileDevice::open(path, options).map_err(|e| e.to_string())
    }

    /// Opens the volume on `device`, through the library. `device` may wrap the volume's file.
    pub(crate) fn open_on(&self, device: Arc<dyn Device>) -> Result<Filesystem, String> {
        let options = MountOptions::parse(&self.options).map_err(|e| e.to_string())?;
        Filesystem::open(vec![device], options).map_err(|e| e.to_string())
    }
}

impl Empty {
    /// Runs this program as an empty server; returns when it is mounted.
    fn start(dir: &Path, options: &str) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = Command::new(own);
        command.arg("empty-server").arg(dir);
        if options.split(',').any(|option| option == "io_uring") {
            command.arg("--ring");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        let said = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let mut empty = Self { child, said };
        match empty.line()?.as_str() {
            "ready" => Ok(empty),
            other => Err(format!("the empty server said: {other}")),
        }
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.said.read_line(&mut line).map_err(|e| e.to_string())?;
        Ok(line.trim().to_owned())
    }

    fn requests(&mut self) -> Result<Value, String> {
        let ask = self.child.stdin.as_mut().ok_or("no standard input")?;
        writeln!(ask).map_err(|e| e.to_string())?;
        serde_json::from_str(&self.line()?).map_err(|e| e.to_string())
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = self.unmount();
        if let Some(device) = &self.loop_device {
            let _ = sh("losetup", &["--detach", device]);
        }
        let _ = std::fs::remove_file(&self.image);
        let _ = std::fs::remove_dir(&self.mountpoint);
    }
}
