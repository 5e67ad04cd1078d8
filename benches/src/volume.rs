//! Work on whole subvolumes and volumes: making and deleting snapshots, cloning a large file,
//! sending changes, scrubbing and checking.
//!
//! Buttress does the work in this process. Linux's btrfs does the work with its own tools. The time
//! to start a tool is a row of its own.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use buttress_check::Options;
use buttress_fs::{Filesystem, Inode, NewInode, ScrubOptions};
use buttress_send::SendOptions;

use crate::{
    report::{Better, Report},
    setup::{Setup, sh},
    target::Target,
    work::{Job, pattern, text},
};

const BLOCK: u64 = 4096;
/// The number of files of the subvolume, and of extents in each file. An extent has one block, and
/// a hole follows it.
const FILES: u64 = 100;
const EXTENTS: u64 = 1000;
const SNAPSHOTS: usize = 20;
const LARGE_MIB: u64 = 4096;

/// One file system under these jobs.
trait Volume {
    fn subvolume(&self, name: &str) -> Result<(), String>;
    /// Returns when the snapshot is durable.
    fn snapshot(&self, source: &str, name: &str, read_only: bool) -> Result<(), String>;
    /// Returns when the space that only this subvolume used is free.
    fn delete(&self, name: &str) -> Result<(), String>;
    fn file(&self, path: &str) -> Result<Place, String>;
    fn clone_file(&self, from: &str, to: &str) -> Result<(), String>;
    fn send(&self, parent: &str, name: &str) -> Result<(), String>;
    fn scrub(&self) -> Result<(), String>;
    fn sync(&self) -> Result<(), String>;
}

/// A file to write to.
enum Place {
    Library(Inode),
    Folder(File),
}

impl Place {
    fn write(&self, at: u64, data: &[u8]) -> Result<(), String> {
        match self {
            Self::Library(inode) => inode.write_at(at, data).map(drop).map_err(text),
            Self::Folder(file) => file.write_all_at(data, at).map_err(text),
        }
    }
}

struct Ours {
    fs: Filesystem,
}

impl Ours {
    fn tree(&self, name: &str) -> Result<buttress_fs::TreeId, String> {
        Ok(self.fs.resolve(name).map_err(text)?.id().tree)
    }
}

impl Volume for Ours {
    fn subvolume(&self, name: &str) -> Result<(), String> {
        self.fs.root().create_subvolume(name.as_bytes(), 0o755, 0, 0).map(drop).map_err(text)
    }

    fn snapshot(&self, source: &str, name: &str, read_only: bool) -> Result<(), String> {
        let source = self.tree(source)?;
        self.fs.root().snapshot(name.as_bytes(), source, read_only).map_err(text)?;
        self.fs.sync().map_err(text)
    }

    fn delete(&self, name: &str) -> Result<(), String> {
        self.fs.root().delete_subvolume(name.as_bytes()).map_err(text)?;
        while !self.fs.dying_subvolumes().map_err(text)?.is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        self.fs.sync().map_err(text)
    }

    fn file(&self, path: &str) -> Result<Place, String> {
        if let Ok(inode) = self.fs.resolve(path) {
            return Ok(Place::Library(inode));
        }
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.fs.resolve(dir).map_err(text)?;
        let file = dir.create(name.as_bytes(), NewInode::file(0o644)).map_err(text)?;
        Ok(Place::Library(file))
    }

    fn clone_file(&self, from: &str, to: &str) -> Result<(), String> {
        let Place::Library(to) = self.file(to)? else { return Err("not ours".into()) };
        let from = self.fs.resolve(from).map_err(text)?;
        let len = from.attr().size;
        from.clone_range(0, &to, 0, len).map_err(text)
    }

    fn send(&self, parent: &str, name: &str) -> Result<(), String> {
        let mut options = SendOptions::new(self.tree(name)?);
        options.parent = Some(self.tree(parent)?);
        buttress_send::send(&self.fs, &options, io::sink()).map(drop).map_err(text)
    }

    fn scrub(&self) -> Result<(), String> {
        let (_, whole) = self.fs.scrub(ScrubOptions::default(), &mut |_| true).map_err(text)?;
        if whole { Ok(()) } else { Err("the scrub did not come to its end".into()) }
    }

    fn sync(&self) -> Result<(), String> {
        self.fs.sync().map_err(text)
    }
}

struct Linux<'s> {
    folder: &'s Path,
}

impl Linux<'_> {
    fn at(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }
}

impl Volume for Linux<'_> {
    fn subvolume(&self, name: &str) -> Result<(), String> {
        sh("btrfs", &["subvolume", "create", &self.at(name)]).map(drop)
    }

    fn snapshot(&self, source: &str, name: &str, read_only: bool) -> Result<(), String> {
        let (source, name) = (self.at(source), self.at(name));
        let mut words = vec!["subvolume", "snapshot", &source, &name];
        if read_only {
            words.insert(2, "-r");
        }
        // The ioctl commits.
        sh("btrfs", &words).map(drop)
    }

    fn delete(&self, name: &str) -> Result<(), String> {
        sh("btrfs", &["subvolume", "delete", "--commit-after", &self.at(name)])?;
        // This command wakes the thread that deletes, which otherwise sleeps until the next commit
        // interval. The tool that waits for a deletion checks only once a second.
        sh("btrfs", &["filesystem", "sync", &self.at("")])?;
        while !sh("btrfs", &["subvolume", "list", "-d", &self.at("")])?.is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        self.sync()
    }

    fn file(&self, path: &str) -> Result<Place, String> {
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        options.open(self.folder.join(path)).map(Place::Folder).map_err(text)
    }

    fn clone_file(&self, from: &str, to: &str) -> Result<(), String> {
        let from = File::open(self.folder.join(from)).map_err(text)?;
        let to = File::create(self.folder.join(to)).map_err(text)?;
        rustix::fs::ioctl_ficlone(&to, &from).map_err(text)
    }

    fn send(&self, parent: &str, name: &str) -> Result<(), String> {
        let status = Command::new("btrfs")
            .args(["-q", "send", "-p", &self.at(parent), &self.at(name)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(text)?;
        if status.success() { Ok(()) } else { Err(format!("btrfs send: {status}")) }
    }

    fn scrub(&self) -> Result<(), String> {
        sh("btrfs", &["scrub", "start", "-B", &self.at("")]).map(drop)
    }

    fn sync(&self) -> Result<(), String> {
        let folder = File::open(self.folder).map_err(text)?;
        rustix::fs::syncfs(folder).map_err(text)
    }
}

pub(crate) fn run(job: &Job, report: &mut Report) -> Result<(), String> {
    let target = job.target;
    let mut setup = Setup::new(target, &job.dir)?;
    match target {
        Target::Library | Target::Loop => {
            let ours = Ours { fs: setup.open()? };
            work(&ours, target, report)?;
            ours.fs.close().map_err(text)?;
        }
        Target::Btrfs => work(&Linux { folder: setup.folder() }, target, report)?,
        other => return Err(format!("{other} has no subvolumes to measure")),
    }
    setup.unmount()?;
    for (what, contents) in [("check", false), ("check --check-data-csum", true)] {
        let start = Instant::now();
        if target.is_library() {
            let options = Options { check_data_csum: contents, ..Options::default() };
            let report = buttress_check::check_images(&[setup.device().into()], &options);
            let report = report.map_err(text)?;
            if !report.is_clean() {
                return Err(report.to_text());
            }
        } else {
            let device = setup.device().to_string_lossy().into_owned();
            let mut words = vec!["check", "--check-data-csum", &device];
            if !contents {
                words.remove(1);
            }
            sh("btrfs", &words)?;
        }
        report.add(what, "ms", Better::Less, target, ms(start));
    }
    Ok(())
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1000.0
}

fn work(volume: &dyn Volume, target: Target, report: &mut Report) -> Result<(), String> {
    let mut timed = |what: &str, job: &mut dyn FnMut() -> Result<(), String>| {
        let start = Instant::now();
        job()?;
        report.add(what, "ms", Better::Less, target, ms(start));
        Ok::<(), String>(())
    };
    timed("starting a tool", &mut || match target {
        Target::Btrfs => sh("btrfs", &["--version"]).map(drop),
        _ => Ok(()),
    })?;

    volume.subvolume("live")?;
    scatter(volume, 1)?;
    volume.sync()?;
    timed(&format!("{SNAPSHOTS} snapshots of {FILES} files, one after the other"), &mut || {
        (0..SNAPSHOTS).try_for_each(|n| volume.snapshot("live", &format!("copy-{n}"), false))
    })?;
    for n in 0..SNAPSHOTS {
        volume.delete(&format!("copy-{n}"))?;
    }
    volume.snapshot("live", "before", true)?;
    scatter(volume, 2)?;
    volume.snapshot("live", "after", true)?;
    timed(&format!("send, {} changed extents", FILES * EXTENTS), &mut || {
        volume.send("before", "after")
    })?;
    timed(
        &format!("deleting a snapshot with {} extents of its own", FILES * EXTENTS),
        &mut || volume.delete("before"),
    )?;

    let large = volume.file("large")?;
    let chunk = pattern(4, 1 << 20);
    for at in 0..LARGE_MIB {
        large.write(at << 20, &chunk)?;
    }
    drop(large);
    volume.sync()?;
    timed(&format!("cloning a file of {LARGE_MIB} MiB"), &mut || {
        volume.clone_file("large", "clone")
    })?;
    volume.sync()?;
    timed(&format!("scrub of {LARGE_MIB} MiB and more"), &mut || volume.scrub())
}

/// Writes every other block of every file, so that each written block is an extent.
fn scatter(volume: &dyn Volume, round: usize) -> Result<(), String> {
    let data = pattern(round, BLOCK as usize);
    for file in 0..FILES {
        let place = volume.file(&format!("live/file-{file:03}"))?;
        for extent in 0..EXTENTS {
            place.write(extent * 2 * BLOCK, &data)?;
        }
    }
    volume.sync()
}
