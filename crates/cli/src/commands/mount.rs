//! `buttress mount`: shows a volume to every program, until it is unmounted.
//!
//! # Place
//!
//! Without `--foreground` the program starts itself once more with it, in a session of its own, and
//! ends as soon as that child says that the mount is there. (A process with threads cannot fork
//! and go on; one that has none yet can start another.) The child opens the devices, so the lock on
//! them is its own and lasts until everything is durable, which may be after umount(8) returned. A
//! mount that comes too early waits for that.
//!
//! # Failure
//!
//! Until the mount is there the child speaks on the caller's terminal, and its exit code becomes the
//! caller's. Afterwards there is only the log.

mod finishing;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use buttress_block::{Device, OpenOptions};
use buttress_cache::{CacheDevice, CacheOptions};
use buttress_fs::{Filesystem, MountOptions};
use buttress_fuse::{Options, Session, Unmounted, Unmounter};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cached::{self, Cached};
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::live::{Live, Subject};
use crate::ui::Ui;

/// What the child says when the mount is there.
const READY: &str = "ready";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image file or block device.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    /// The directory to mount it on.
    #[arg(value_name = "DIR")]
    target: PathBuf,
    /// Other devices of the same volume.
    #[arg(value_name = "MORE")]
    more: Vec<PathBuf>,
    #[command(flatten)]
    devices: Devices,
    #[command(flatten)]
    cached: Cached,
    /// Mount options, separated by commas: ro, subvol=PATH, commit=SECONDS, allow_other, and so
    /// on; with --cache those of the cache, too; a wrong one lists them all.
    #[arg(long, short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// When to go past the kernel's page cache to the devices; auto does so to block devices.
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "always"
    )]
    direct: Direct,
    /// Stay until the volume is unmounted, and log to standard error.
    #[arg(long, short)]
    foreground: bool,
    /// Where a mount in the background logs to; nowhere unless given.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Say on standard output when the mount is there, then detach.
    #[arg(long, hide = true, requires = "foreground")]
    announce: bool,
}

/// When devices are opened past the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Direct {
    /// Block devices are: nobody else reads them meanwhile, and an fsync waits for less. Image files are not.
    #[default]
    Auto,
    Always,
    Never,
}

impl Direct {
    fn applies_to(self, path: &Path) -> bool {
        let is_block = |path: &Path| {
            std::fs::metadata(path)
                .is_ok_and(|metadata| FileTypeExt::is_block_device(&metadata.file_type()))
        };
        self == Self::Always || self == Self::Auto && is_block(path)
    }
}

/// What scripts read.
#[derive(Serialize)]
struct Document<'a> {
    image: &'a Path,
    target: &'a Path,
    pid: u32,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let options = parse(&args)?;
    if args.foreground { serve(&args, options, ui) } else { start(&args, ui) }
}

/// The options, by who takes them.
struct Parsed {
    door: Options,
    volume: MountOptions,
    cache: CacheOptions,
}

/// The door's options, the volume's and the cache's.
fn parse(args: &Args) -> Result<Parsed> {
    let mut cache = args.cached.options()?;
    let mut others = Vec::new();
    for word in words(&args.options) {
        let wrong = |error| cached::failure("--options", error);
        if args.cached.cache.is_none() || !cache.accept(word).map_err(wrong)? {
            others.push(word);
        }
    }
    let mut door = Options::default();
    // The kernel keeps what was read through a mount; twice in memory is once too often.
    let mut rest = vec!["page_cache=0"];
    rest.extend(for_volume(&others, &mut door)?);
    let mut volume = volume_options(&rest)?;
    volume.degraded |= args.devices.degraded;
    door.read_only |= volume.read_only;
    cache.check().map_err(|error| cached::failure("--options", error))?;
    Ok(Parsed { door, volume, cache })
}

/// The options in lists of them, each with whether the volume takes it. A wrong one is refused.
pub(crate) fn split(lists: &[String]) -> Result<Vec<(String, bool)>> {
    let words: Vec<_> = words(lists).collect();
    let volume = for_volume(&words, &mut Options::default())?;
    volume_options(&volume)?;
    let each = |word: &str| (word.to_owned(), volume.contains(&word));
    Ok(words.iter().copied().map(each).collect())
}

/// The options in lists of them.
fn words(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|word| !word.is_empty())
}

/// Gives the door its options, and returns those that the volume is given.
fn for_volume<'w>(words: &[&'w str], door: &mut Options) -> Result<Vec<&'w str>> {
    let mut volume = Vec::new();
    for word in words {
        let is_doors =
            door.accept(word).map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
        let is_both = matches!(*word, "ro" | "rw" | "noatime" | "relatime");
        if !is_doors || is_both {
            volume.push(*word);
        }
    }
    Ok(volume)
}

/// The volume's options; what the door did not know either is told with all that there are.
fn volume_options(words: &[&str]) -> Result<MountOptions> {
    MountOptions::parse(&words.join(",")).map_err(|error| {
        let known = buttress_fuse::KNOWN_OPTIONS.join(", ");
        Failure::new(Exit::Usage, format!("{error}; and for the mount itself {known}"))
    })
}

/// Starts the child that serves, and waits until it does.
fn start(args: &Args, ui: &Ui) -> Result<Exit> {
    let program = std::env::current_exe().context(|| "finding this program")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .args(["--foreground", "--announce"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(|| "starting the mount")?;
    let said = child.stdout.take().map(BufReader::new).and_then(|mut said| {
        let mut line = String::new();
        said.read_line(&mut line).ok().map(|_| line)
    });
    if said.as_deref().map(str::trim) != Some(READY) {
        return failed(child);
    }
    if ui.json() {
        ui.document(&Document { image: &args.image, target: &args.target, pid: child.id() })?;
    }
    Ok(Exit::Success)
}

/// Ends as the child did; it has said why.
fn failed(mut child: Child) -> Result<Exit> {
    let status = child.wait().context(|| "waiting for the mount")?;
    let exits = [Exit::Usage, Exit::Corrupt, Exit::Unsupported, Exit::NoSpace, Exit::Refused];
    let same = |exit: &Exit| status.code() == Some(i32::from(*exit as u8));
    match (exits.into_iter().find(same), status.code()) {
        (Some(exit), _) => Ok(exit),
        (None, Some(_)) => Ok(Exit::Failure),
        (None, None) => {
            Err(Failure::new(Exit::Failure, format!("the mount ended early: {status}")))
        }
    }
}

fn serve(args: &Args, options: Parsed, ui: &Ui) -> Result<Exit> {
    let Parsed { mut door, volume, cache } = options;
    if args.announce {
        // Ctrl-C at the terminal is not for a mount in the background.
        rustix::process::setsid().context(|| "leaving the terminal")?;
    }
    // Signals that come while the volume is being opened wait for the thread that takes them.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context(|| "watching for signals")?;
    let image = args.image.canonicalize().context(|| args.image.display().to_string())?;
    if door.source == Options::default().source {
        door.source = image.to_string_lossy().into_owned();
    }
    let (fs, cache) = open(args, &image, volume, cache, ui)?;
    if let Some(why) = fs.read_only_reason() {
        if !door.read_only {
            ui.note(format!("{}: mounted read-only: {why}", image.display()));
        }
        door.read_only = true;
    }
    let mounted = buttress_fuse::mount(fs.clone(), &args.target, &door);
    let session = mounted.map_err(std::io::Error::other).context(String::new)?;
    let stage = Arc::new(AtomicU8::new(Stage::Serving as u8));
    watch(signals, session.unmounter(), Arc::clone(&stage))?;
    tracing::info!(image = %image.display(), target = %session.unmounter().target().display(), "mounted");
    // Before the mount is announced, and before the directory is left: names may be relative.
    let _live = live(args, &image, &session, cache.as_ref(), &fs).listen();
    let session = session.start().map_err(std::io::Error::other).context(String::new)?;
    if args.announce {
        announce(args.log.as_deref())?;
    }
    let served = session.wait();
    stage.store(Stage::Committing as u8, Ordering::SeqCst);
    let closed = fs.close().context(|| format!("{}: closing", image.display()));
    served.map_err(std::io::Error::other).context(String::new)?;
    closed?;
    if let Some(cache) = cache {
        tracing::info!(status = %cache.status(), "closing the cache");
        cached::close(&cache)?;
    }
    tracing::info!(image = %image.display(), "unmounted, and everything is durable");
    Ok(Exit::Success)
}

/// What this process tells of itself.
fn live(
    args: &Args,
    image: &Path,
    session: &Session,
    cache: Option<&Arc<CacheDevice>>,
    fs: &Filesystem,
) -> Live {
    let mut live = Live::new(Subject::of(image.to_owned(), args.cached.full_path()));
    live.mount(session.unmounter());
    if let Some(cache) = cache {
        live.cache(cache);
    }
    live.volume(fs, Some(session.beside()));
    for (name, figures) in crate::space::PARTS {
        let fs = fs.clone();
        live.section(name, move || figures(&fs.space_stats()));
    }
    let devices = fs.clone();
    live.section("devices", move || crate::space::device_figures(&devices.io_stats()));
    let syncs = fs.clone();
    live.section("fsync", move || crate::space::sync_figures(&syncs.sync_stats()));
    live
}

/// Tells the parent that the mount is there, and lets go of its terminal and directory.
fn announce(log: Option<&Path>) -> Result<()> {
    let log = match log {
        Some(path) => File::options().create(true).append(true).open(path),
        None => File::options().write(true).open("/dev/null"),
    };
    let log = log.context(|| "the log")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{READY}").and_then(|()| out.flush()).context(|| "announcing the mount")?;
    rustix::stdio::dup2_stdout(&log).context(|| "leaving standard output")?;
    rustix::stdio::dup2_stderr(&log).context(|| "leaving standard error")?;
    std::env::set_current_dir("/").context(|| "leaving the directory")
}

/// Opens the devices and the volume on them.
fn open(
    args: &Args,
    image: &Path,
    options: MountOptions,
    cache: CacheOptions,
    ui: &Ui,
) -> Result<(Filesystem, Option<Arc<CacheDevice>>)> {
    let how = if options.read_only { OpenOptions::READ } else { OpenOptions::WRITE };
    let how = |path: &Path| OpenOptions { direct: args.direct.applies_to(path), ..how };
    let paths = args.more.iter().chain(&args.devices.devices).map(PathBuf::as_path);
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for path in std::iter::once(image).chain(paths) {
        devices.push(Arc::new(finishing::open_device(path, how(path), ui)?));
    }
    let mut cached = None;
    if let Some(path) = &args.cached.cache {
        // The first device, the one that was named.
        let origin = Arc::clone(&devices[0]);
        let device = Arc::new(cached::open(origin, path, cache, how(path))?);
        devices[0] = Arc::clone(&device) as Arc<dyn Device>;
        cached = Some(device);
    }
    let fs = Filesystem::open(devices, options).context(|| image.display().to_string())?;
    Ok((fs, cached))
}

/// How far the end has come, for whoever asks by a second signal.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Stage {
    Serving,
    InUse,
    Committing,
}

/// Unmounts at the first signal, and says at every other what there is to wait for.
fn watch(mut signals: Signals, unmounter: Unmounter, stage: Arc<AtomicU8>) -> Result<()> {
    let work = move || {
        let target = unmounter.target().display().to_string();
        for _ in signals.forever() {
            let now = stage.load(Ordering::SeqCst);
            if now == Stage::InUse as u8 {
                say(&format!("{target}: programs still use it; waiting for them to finish"));
            } else if now == Stage::Committing as u8 {
                say(&format!("{target}: waiting for the last writes to be durable"));
            } else {
                match unmounter.unmount() {
                    Ok(Unmounted::Clean) => {}
                    Ok(Unmounted::Busy) => {
                        let _ = stage.compare_exchange(
                            Stage::Serving as u8,
                            Stage::InUse as u8,
                            Ordering::SeqCst,
                            Ordering::SeqCst,
                        );
                        say(&format!(
                            "{target}: programs still use it; it is out of sight and ends with the last of them"
                        ));
                    }
                    Err(error) => say(&format!("{error}")),
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(work);
    thread.map(drop).context(|| "watching for signals")
}

fn say(text: &str) {
    // Nobody to tell when standard error is closed.
    let _ = writeln!(std::io::stderr().lock(), "buttress: {text}");
}
