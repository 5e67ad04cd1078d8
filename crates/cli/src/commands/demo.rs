//! `buttress demo`: makes a volume, mounts it, uses it, and shows what happens.
//!
//! # Place
//!
//! This is the first command of the README, so it must work on a machine with nothing but Rust. All
//! work happens in a new temporary folder, which is removed afterwards unless `--keep` is given.

mod access;
mod library;
mod mounted;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use buttress_block::{Device, FileDevice};
use buttress_fs::Filesystem;
use buttress_fs::make::MakeOptions;

use self::access::Access;
use self::library::Library;
use self::mounted::Mounted;
use self::work::Sources;
use crate::exit::{Context, Exit, Failure, Result};
use crate::size::human;
use crate::ui::{Tone, Ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Keep the volume mounted at the end.
    #[arg(long)]
    keep: bool,
    /// Use the library instead of a mount, even if FUSE works.
    #[arg(long)]
    no_mount: bool,
    /// Size of the volume.
    #[arg(long, default_value = "4G", value_parser = crate::size::parse)]
    size: u64,
    /// Number of small files.
    #[arg(long, value_name = "N", default_value_t = 4000)]
    files: u32,
    /// Size of the large file.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = crate::size::parse)]
    large: u64,
}

/// The values that all steps use.
struct Demo<'a> {
    ui: &'a Ui,
    folder: Folder,
    interrupted: Arc<AtomicBool>,
}

/// The folder of this run. Dropping this value removes the folder, unless `keep` is set.
struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            // If the removal fails, one more temporary folder remains, which does no harm.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).context(|| "signals")?;
    }
    let mut demo = Demo { ui, folder: Folder::new()?, interrupted };
    let image = demo.folder.path.join("demo.img");
    ui.line(ui.tint(Tone::Heading, "A btrfs volume, without the kernel's btrfs"))?;
    ui.line("")?;
    demo.make(&image, args.size)?;
    let mut access = demo.open_access(&image, args.no_mount)?;
    demo.exercise(&mut *access, &args)?;
    demo.finish(access, &image, &args)?;
    Ok(Exit::Success)
}

impl Folder {
    fn new() -> Result<Self> {
        let name = format!("buttress-demo-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).context(|| path.display().to_string())?;
        Ok(Self { path, keep: false })
    }
}

impl Demo<'_> {
    /// Prints one step that is done.
    fn step(&self, verb: &str, what: &str, took: Duration, rate: &str) -> Result<()> {
        let verb = self.ui.tint(Tone::Good, &format!("{verb:<10}"));
        let took = self.ui.tint(Tone::Dim, &format!("{:>8.0} ms", took.as_secs_f64() * 1e3));
        self.ui.line(format!("  {verb} {what:<44} {took}  {rate}").trim_end())
    }

    fn check_interrupt(&self) -> Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Failure::new(Exit::Failure, "interrupted; everything is cleaned up"));
        }
        Ok(())
    }

    fn make(&self, image: &Path, size: u64) -> Result<()> {
        let start = Instant::now();
        let device = FileDevice::create(image, size).map_err(Failure::of_device)?;
        let options = MakeOptions { label: b"demo".to_vec(), ..MakeOptions::default() };
        Filesystem::make(&device, &options).context(|| "making the volume")?;
        drop(device);
        let what = format!("{} volume, {} on disk", human(size), human(allocated(image)));
        self.step("made", &what, start.elapsed(), &image.display().to_string())
    }

    /// Mounts the volume, or opens it as a library if it cannot be mounted.
    fn open_access(&mut self, image: &Path, no_mount: bool) -> Result<Box<dyn Access>> {
        let start = Instant::now();
        if !no_mount {
            let target = self.folder.path.join("mnt");
            match Mounted::new(image, &target)? {
                Ok(mounted) => {
                    let rate = target.display().to_string();
                    self.step("mounted", "through FUSE, read-write", start.elapsed(), &rate)?;
                    return Ok(Box::new(mounted));
                }
                Err(why) => {
                    let text = format!("  no FUSE here ({why}): going through the library");
                    self.ui.line(self.ui.tint(Tone::Bad, &text))?;
                }
            }
        }
        let library = Library::open(image)?;
        self.step("opened", "as a library, read-write", start.elapsed(), "")?;
        Ok(Box::new(library))
    }

    /// Runs all steps on the volume.
    fn exercise(&self, access: &mut dyn Access, args: &Args) -> Result<()> {
        let sources = Sources::find()?;
        let copied = work::copy_in(self, access, &sources)?;
        let start = Instant::now();
        access.reopen()?;
        self.step("reopened", "closed, opened again: all caches are cold", start.elapsed(), "")?;
        work::compare(self, access, &sources, copied)?;
        work::large_file(self, access, args.large)?;
        work::small_files(self, access, args.files)?;
        let start = Instant::now();
        access.sync()?;
        self.step("committed", "everything is durable", start.elapsed(), "")
    }

    fn finish(&mut self, mut access: Box<dyn Access>, image: &Path, args: &Args) -> Result<()> {
        let ui = self.ui;
        let kept = args.keep && access.keep();
        if args.keep {
            self.folder.keep = true;
        }
        if kept {
            let mount = self.folder.path.join("mnt");
            ui.line("")?;
            ui.line(format!("The volume stays mounted at {}. Now try:", mount.display()))?;
            ui.line(format!("  ls -l {}", mount.display()))?;
            ui.line(format!("  umount {}", mount.display()))?;
            return Ok(());
        }
        let start = Instant::now();
        access.close()?;
        let what = format!("{} of the image are in use on disk", human(allocated(image)));
        self.step("closed", &what, start.elapsed(), "")?;
        ui.line("")?;
        ui.line("Everything read back equal. Now try:")?;
        let program = std::env::args().next().unwrap_or_else(|| "buttress".to_owned());
        let image = image.display();
        let kept = [format!("tree {image}:/ --depth 2"), format!("info {image}")];
        let fresh = ["demo --keep                        # leaves the volume mounted".to_owned()];
        let always = [
            "mkfs new.img --size 4G --label mine",
            "mount new.img /mnt                 # any program can use it now",
            "cp --recursive src new.img:/       # or without mounting",
        ];
        let first: &[String] = if args.keep { &kept } else { &fresh };
        for text in first.iter().map(String::as_str).chain(always) {
            ui.line(format!("  {program} {text}"))?;
        }
        Ok(())
    }
}

/// Bytes that a sparse file takes.
fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    path.metadata().map_or(0, |metadata| metadata.blocks() * 512)
}

/// The device of an image, for steps that open it themselves.
fn open_image(image: &Path) -> Result<Arc<dyn Device>> {
    let device = FileDevice::open(image, buttress_block::OpenOptions::WRITE);
    Ok(Arc::new(device.map_err(Failure::of_device)?))
}
