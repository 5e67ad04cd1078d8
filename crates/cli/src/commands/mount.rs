//! `buttress mount`: shows a volume to every program, until it is unmounted.
//!
//! # Place
//!
//! Without `--foreground`, the program starts itself again with `--foreground`. The parent ends as
//! soon as that child reports that the mount is there. The child then enters a session of its own.
//! The program does not fork, because a process with threads cannot go on after a fork.
//!
//! The child opens the devices, so it owns their locks. The child keeps the locks until everything
//! is durable, which may be after umount(2) has returned. A verb that opens the volume meanwhile
//! waits ([`crate::closing`]). `umount` waits as well ([`super::umount`]).
//!
//! If a server already has the volume mounted, the child joins that server and ends ([`join`]). If
//! an fstab has several lines for one volume, only the first line starts a server.
//!
//! # Failure
//!
//! Until the mount is there, the child writes to the caller's terminal, and its exit code becomes
//! the exit code of the caller. Afterwards only the log reports anything.

mod advice;
mod block_device;
mod join;
mod open;
mod pressure;
mod store;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use buttress_cache::{CacheDevice, CacheOptions};
use buttress_control::release::ToRelease;
use buttress_fs::{Filesystem, MountOptions};
use buttress_fuse::{Latency, Options, Session, Unmounted, Unmounter};
use buttress_remote::{host_file, is_remote};
use serde::Serialize;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::open::{Whole, open};
use crate::cached::{self, Cached};
use crate::closing;
use crate::exit::{Context, Exit, Failure, Result};
use crate::figures::Figures;
use crate::image::Devices;
use crate::live::{JoinHandler, Live, MountLock, Subject};
use crate::memory;
use crate::names;
use crate::ui::Ui;

/// The word that the child prints when the mount is there.
const READY: &str = "ready";
/// The environment variable that marks the child that serves.
const IS_CHILD: &str = "BUTTRESS_SERVES";
/// The process name of a server of the volume that the machine itself runs from. systemd recognises
/// such a server by the first letter of the name.
const KEPT: &str = "@buttress";
/// A file that exists while a machine runs from its initrd.
const IN_INITRD: &str = "/etc/initrd-release";
/// The mount option of a mount that the machine itself runs from.
const FOR_INITRD: &str = "x-initrd.mount";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image file or block device to mount.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    /// The directory to mount it on.
    #[arg(value_name = "DIR")]
    target: PathBuf,
    /// Further devices of the same volume.
    #[arg(value_name = "MORE")]
    more: Vec<PathBuf>,
    #[command(flatten)]
    devices: Devices,
    #[command(flatten)]
    cached: Cached,
    /// Mount options, separated by commas, such as ro, subvol=PATH, commit=SECONDS, allow_other.
    /// With --cache, they include options of the cache. Options of the kernel's btrfs and of fstab
    /// are accepted.
    #[arg(long, short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// When to bypass the kernel's page cache for the devices. auto: for block devices.
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
    /// Stay in the foreground until the volume is unmounted, and log to standard error.
    #[arg(long, short)]
    foreground: bool,
    /// Ignore unknown mount options, with a warning.
    #[arg(long)]
    sloppy: bool,
    /// Log file of a mount in the background. By default there is no log.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Print on standard output when the mount is there, then detach.
    #[arg(long, hide = true, requires = "foreground")]
    announce: bool,
    /// Succeed if the same volume is already mounted at this place, as mount(8) does.
    #[arg(long, hide = true)]
    is_there_fine: bool,
}

/// When to bypass the page cache of the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Direct {
    /// For block devices only. No other program reads them while they are mounted, and an fsync is
    /// faster.
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
        self == Self::Always || self == Self::Auto && is_block(&host_file(path))
    }
}

/// The JSON document for scripts.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(serialize_with = "names::path::serialize")]
    image: &'a Path,
    #[serde(serialize_with = "names::path::serialize")]
    target: &'a Path,
    pid: u32,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let options = parse(&args)?;
    // With `nofail` a missing device is no failure, as with mount(8).
    let is_optional = !args.announce && words(&args.options).any(|word| word == "nofail");
    if is_optional && !is_remote(&args.image) && !host_file(&args.image).exists() {
        return Ok(Exit::Success);
    }
    if args.foreground {
        return serve(&args, options, ui);
    }
    let given: Vec<OsString> = std::env::args_os().skip(1).collect();
    match start(spawn(&given, is_for_initrd(&args.options))?)? {
        Started::Serves(pid) if ui.json() => {
            ui.document(&Document { image: &args.image, target: &args.target, pid })?;
            Ok(Exit::Success)
        }
        Started::Serves(_) => Ok(Exit::Success),
        Started::Failed(exit) => Ok(exit),
    }
}

/// The options, by the layer that takes them.
struct Parsed {
    fuse: Options,
    volume: MountOptions,
    cache: CacheOptions,
}

/// Parses the options of the front end, of the volume and of the cache.
fn parse(args: &Args) -> Result<Parsed> {
    let mut cache = args.cached.options()?;
    let mut others = Vec::new();
    for word in words(&args.options).filter(|word| !word.starts_with("device=")) {
        let wrong = |error| cached::failure("--options", error);
        if args.cached.cache.is_none() || !cache.accept(word).map_err(wrong)? {
            others.push(word);
        }
    }
    let mut fuse = Options::default();
    let mut rest = for_volume(&others, &mut fuse)?;
    if args.sloppy {
        rest.retain(|word| {
            let is_known = MountOptions::takes(word);
            if !is_known {
                crate::ui::note(format!("mount option {word} is left out: there is none like it"));
            }
            is_known
        });
    }
    let mut volume = volume_options(&rest, args.devices.memory)?;
    volume.degraded |= args.devices.degraded;
    if let Some(words) = &args.devices.rescue {
        let more = volume.parse_more(&format!("rescue={words}"));
        more.map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    }
    fuse.read_only |= volume.read_only;
    // The kernel caches data that is read through a mount. A second cache in this process would
    // waste memory.
    if !others.iter().any(|word| word.starts_with("page_cache=")) {
        volume.page_cache_bytes = 0;
    }
    let parts = memory::Parts::of(&volume);
    fuse.keep_within(parts.known, parts.requests);
    // With `submounts`, the volume cannot become writable later: the mounts of subvolumes would
    // stay read-only.
    volume.may_begin_writing = volume.read_only && !fuse.submounts;
    volume.resumes_replace = true;
    cache.check().map_err(|error| cached::failure("--options", error))?;
    Ok(Parsed { fuse, volume, cache })
}

/// Splits lists of options into single options. Each option has a flag that says whether the volume
/// takes the option. Fails for invalid options.
pub(crate) fn split(lists: &[String]) -> Result<Vec<(String, bool)>> {
    let words: Vec<_> = words(lists).collect();
    let volume = for_volume(&words, &mut Options::default())?;
    volume_options(&volume, None)?;
    let each = |word: &str| (word.to_owned(), volume.contains(&word));
    Ok(words.iter().copied().map(each).collect())
}

/// Splits lists of options into single options.
pub(crate) fn words(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|word| !word.is_empty())
}

/// Sets the options of the front end, and returns the options of the volume.
fn for_volume<'w>(words: &[&'w str], fuse: &mut Options) -> Result<Vec<&'w str>> {
    let mut volume = Vec::new();
    for word in words {
        let is_fuse =
            fuse.accept(word).map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
        let is_fuse = is_fuse || store::takes(word);
        let is_both = matches!(*word, "ro" | "rw") || word.ends_with("atime");
        if !is_fuse || is_both {
            volume.push(*word);
        }
    }
    Ok(volume)
}

/// Parses the volume's options. `memory` is the budget, unless the options set another one. The
/// error for an unknown option names similar options of the volume and of the front end.
fn volume_options(words: &[&str], memory: Option<u64>) -> Result<MountOptions> {
    let mut options = memory::options(memory);
    let parsed = options.parse_more(&words.join(",")).map_err(|error| {
        let error = match error {
            buttress_fs::Error::Option { option, why } if why.starts_with("is not known") => {
                let fuse = buttress_fuse::KNOWN_OPTIONS.iter();
                let fuse = fuse.map(|known| known.split('=').next().unwrap_or(known));
                let all = buttress_fs::OPTION_NAMES.iter().copied().chain(fuse);
                buttress_fs::unknown_option(&option, all)
            }
            error => error,
        };
        Failure::new(Exit::Usage, error.to_string())
    });
    parsed.map(|()| options)
}

/// Returns whether the machine itself runs from the mount. At shutdown, systemd kills all other
/// servers before it unmounts. The server of such a mount must run until the end.
pub(crate) fn is_for_initrd(options: &[String]) -> bool {
    words(options).any(|word| word == FOR_INITRD) || Path::new(IN_INITRD).exists()
}

/// Starts the child that serves, with the words of a `mount` command line.
pub(crate) fn spawn(given: &[OsString], is_kept: bool) -> Result<Child> {
    let program = std::env::current_exe().context(|| "finding this program")?;
    if std::env::var_os(IS_CHILD).is_some() {
        return Err(Failure::new(Exit::Failure, "a mount in the background starts no other"));
    }
    // After `--` there are only names, so the added options must stand before it. Otherwise the
    // child would take these options for names and start a child of its own, without end.
    let end = given.iter().position(|word| word == "--").unwrap_or(given.len());
    pressure::avoid_huge_pages();
    Command::new(program)
        .arg0(if is_kept { OsStr::new(KEPT) } else { OsStr::new("buttress") })
        .args(&given[..end])
        .args(["--foreground", "--announce"])
        .args(&given[end..])
        .env(IS_CHILD, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(|| "starting the mount")
}

/// The outcome of starting a child.
pub(crate) enum Started {
    /// The mount is there, served by the process with this number.
    Serves(u32),
    /// The child ended, and has said why.
    Failed(Exit),
}

/// Waits until a child serves.
pub(crate) fn start(mut child: Child) -> Result<Started> {
    let said = child.stdout.take().map(BufReader::new).and_then(|mut said| {
        let mut line = String::new();
        said.read_line(&mut line).ok().map(|_| line)
    });
    let said = said.as_deref().map(str::trim).and_then(|said| said.strip_prefix(READY));
    match said.map(|pid| pid.trim().parse()) {
        Some(Ok(pid)) => Ok(Started::Serves(pid)),
        Some(Err(_)) => Ok(Started::Serves(child.id())),
        None => failed(child).map(Started::Failed),
    }
}

/// Returns the exit code of the child, which has said why it ended.
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
    let Parsed { mut fuse, volume, cache } = options;
    pressure::prepare();
    // Signals that arrive while the volume is being opened are kept until the thread for signals
    // starts.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context(|| "watching for signals")?;
    crate::interrupted::leave_to_server();
    let image = closing::full_name(&args.image).context(|| args.image.display().to_string())?;
    let asked = store::asked(args, &image)?;
    let image = store::shown_name(image, &asked);
    args.cached.refuse_remote(&image)?;
    if fuse.source == Options::default().source {
        fuse.source = image.to_string_lossy().into_owned();
    }
    if !volume.without_effect.is_empty() {
        let list = volume.without_effect.join(", ");
        ui.note(format!("options without effect here: {list}"));
    }
    // If several mounts begin together, one of the processes becomes the server for all of them.
    let mount_lock = args.announce.then(|| MountLock::wait(&image));
    if args.announce
        && let Some(pid) = join::join(args, &image, (&fuse, &volume), ui)?
    {
        return announce_server(pid);
    }
    let is_root = rustix::process::geteuid().is_root();
    fuse.shared = is_root && !fuse.submounts && buttress_fuse::can_share();
    let parts = memory::Parts::of(&volume);
    let Whole { fs, cache, mut files, names: devices } = open(args, &image, volume, cache, &asked)?;
    let store = store::Shown::of(&mut files, &mut fuse)?;
    if let Some(why) = fs.read_only_reason() {
        if !fuse.read_only {
            ui.note(format!("{}: mounted read-only: {why}", image.display()));
        }
        fuse.read_only = true;
    }
    fuse.may_begin_writing = fs.can_begin_writing();
    let session =
        block_device::mount(&fs, &args.target, &mut fuse, files.first(), cache.is_some())?;
    advice::give(&session, &fuse, ui);
    let stage = Arc::new(AtomicU8::new(Stage::Serving as u8));
    watch(signals, session.unmounter(), Arc::clone(&stage), fs.clone())?;
    let target = names::of_path(session.unmounter().target());
    tracing::info!(image = names::of_path(&image), target, "mounted");
    // The call of `live` must come before the process announces the mount and leaves the directory,
    // because names may be relative.
    let mut live = live(args, (&image, &devices), &session, cache.as_ref(), &fs);
    let (held, kernel_sync) = (fs.clone(), session.kernel_sync());
    files.iter().for_each(|device| live.add_device(device));
    // A device that leaves the volume is closed, so that others can have it.
    let files: Vec<ToRelease> = files.into_iter().map(ToRelease::from).collect();
    if let Some(store) = store {
        live.add_section("store", move || store.figures());
    }
    live.add_section("memory", move || {
        crate::figures::mount::memory_figures(&held, &kernel_sync, parts)
    });
    live.add_join_handler(match session.sharer() {
        Some(sharer) => {
            let words = words(&args.options).map(str::to_owned).collect();
            JoinHandler::Shared { sharer, words, differing: join::differing }
        }
        None if !is_root => JoinHandler::Alone("only root can mount a volume at a second place"),
        None if fuse.submounts => {
            JoinHandler::Alone("with -o submounts a volume is mounted at one place only")
        }
        None => {
            JoinHandler::Alone("a second mount needs Linux 6.15 or later and the right to mount")
        }
    });
    let live = live.listen();
    let session = session.start().map_err(std::io::Error::other).context(String::new)?;
    if args.announce {
        announce(args.log.as_deref())?;
    }
    drop(mount_lock);
    let served = session.wait();
    stage.store(Stage::Committing as u8, Ordering::SeqCst);
    let closed = close(fs, cache.as_deref(), &image);
    let released = files.iter().try_for_each(ToRelease::release);
    let closed = closed.and(released);
    let at_end = match &served {
        Err(error @ buttress_fuse::Error::Closing(source)) => Some(format!("{error}: {source}")),
        _ => closed.as_ref().err().map(ToString::to_string),
    };
    live.report_closed(at_end);
    served.map_err(std::io::Error::other).context(String::new)?;
    closed?;
    tracing::info!(image = names::of_path(&image), "unmounted, and everything is durable");
    Ok(Exit::Success)
}

/// Makes everything durable, including the volume's cache.
fn close(fs: Filesystem, cache: Option<&CacheDevice>, image: &Path) -> Result<()> {
    fs.close().context(|| format!("{}: closing", image.display()))?;
    if let Some(cache) = cache {
        tracing::info!(status = %cache.status(), "closing the cache");
        cached::close(cache)?;
    }
    Ok(())
}

/// Describes this process for other programs. `image` is the first of `devices`.
fn live(
    args: &Args,
    (image, devices): (&Path, &[PathBuf]),
    session: &Session,
    cache: Option<&Arc<CacheDevice>>,
    fs: &Filesystem,
) -> Live {
    let mut subject = Subject::of(image.to_owned(), args.cached.full_path());
    subject.other_devices(devices.iter().skip(1).map(PathBuf::as_path));
    subject.is_shared = session.sharer().is_some();
    let mut live = Live::new(subject);
    live.add_mount(session.unmounter());
    if let Some(cache) = cache {
        live.add_cache(cache);
    }
    live.add_volume(fs, Some(session.kernel_sync()), crate::execute::carry_out);
    for (name, figures) in crate::figures::mount::PARTS {
        let fs = fs.clone();
        live.add_section(name, move || figures(&fs.space_stats()));
    }
    for (name, figures) in crate::figures::threads::PARTS {
        live.add_section(name, figures);
    }
    let devices = fs.clone();
    live.add_section("devices", move || crate::figures::mount::device_figures(&devices.io_stats()));
    let syncs = fs.clone();
    live.add_section("requests", || {
        let counts = buttress_fuse::requests().into_iter();
        counts.map(|(name, count)| (name.to_owned(), count.into())).collect()
    });
    live.add_section("latency", latency_figures);
    live.add_section("fsync", move || crate::figures::mount::sync_figures(&syncs.sync_stats()));
    live
}

/// The times of answers by kind of request.
fn latency_figures() -> Figures {
    let figures = |latency: Latency| {
        json!({
            "times": latency.answers,
            "bytes": latency.bytes,
            "p50_us": latency.p50_us,
            "p99_us": latency.p99_us,
            "max_us": latency.max_us,
            "total_us": latency.total_us,
        })
    };
    let kinds = buttress_fuse::latencies().into_iter();
    kinds.map(|(kind, latency)| (kind.to_owned(), figures(latency))).collect()
}

/// Tells the parent that the mount is there, and leaves the parent's terminal and directory.
///
/// Until the announcement, the child is in the process group of its parent. systemd runs mount(8)
/// in its own group, and the kernel lets only that group pass an automount point where a mount is
/// being made. Any other process waits at the automount point for that mount.
fn announce(log: Option<&Path>) -> Result<()> {
    let log = match log {
        Some(path) => File::options().create(true).append(true).open(path),
        None => File::options().write(true).open("/dev/null"),
    };
    let log = log.context(|| "the log")?;
    // Ctrl-C at the terminal must not reach a mount in the background.
    rustix::process::setsid().context(|| "leaving the terminal")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{READY}").and_then(|()| out.flush()).context(|| "announcing the mount")?;
    rustix::stdio::dup2_stdout(&log).context(|| "leaving standard output")?;
    rustix::stdio::dup2_stderr(&log).context(|| "leaving standard error")?;
    std::env::set_current_dir("/").context(|| "leaving the directory")
}

/// Tells the parent that the mount is there, and that the server of an earlier mount serves the new
/// mount.
fn announce_server(pid: u32) -> Result<Exit> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{READY} {pid}").and_then(|()| out.flush()).context(|| "announcing the mount")?;
    Ok(Exit::Success)
}

/// The progress of the unmount, which a second signal reports.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Stage {
    Serving,
    InUse,
    Committing,
}

/// Unmounts at the first signal. At each further signal, prints the reason for the wait. If
/// programs still use the mount, makes everything that they have written durable at once, because a
/// machine that shuts down kills this process soon.
fn watch(
    mut signals: Signals,
    unmounter: Unmounter,
    stage: Arc<AtomicU8>,
    fs: Filesystem,
) -> Result<()> {
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
                        if let Err(error) = fs.sync() {
                            say(&format!("{target}: {error}"));
                        }
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
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr().lock(), "buttress: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(list: &str) -> Result<MountOptions> {
        let words: Vec<&str> = list.split(',').collect();
        let volume = for_volume(&words, &mut Options::default())?;
        volume_options(&volume, None)
    }

    /// Lists of options are accepted as they are in an fstab for btrfs and mount(8).
    #[test]
    fn lists_of_fstab_are_taken() {
        for list in [
            "defaults",
            "rw,relatime,ssd,space_cache=v2,subvolid=256,subvol=/@",
            "subvol=@home,compress=zstd:1,noatime,x-systemd.device-timeout=0",
            "noauto,nofail,_netdev,user,x-gvfs-show,comment=a disk",
            "ro,rescue=all",
            "nodev,nosuid,noexec,sync,dirsync,nodiratime,lazytime,iversion",
            "autodefrag,thread_pool=4,commit=120,user_subvol_rm_allowed,skip_balance,noacl",
            "strictatime,auto,owner,group,users,silent,loud,mand,exec,suid,dev,async",
        ] {
            taken(list).unwrap_or_else(|failure| panic!("{list}: {failure}"));
        }
        let options = taken("ssd,noatime,user").expect("taken");
        assert_eq!(options.without_effect, ["ssd"]);
    }

    /// With `--sloppy`, every known option is kept, even if that option needs another option.
    /// Unknown options and invalid values are left out.
    #[test]
    fn sloppy_leaves_out_what_is_unknown_alone() {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let parsed = |list| {
            let words = ["mount", "image", "mnt", "--sloppy", "-o", list];
            parse(&Line::parse_from(words).args).map(|parsed| parsed.volume)
        };
        for list in ["ro,nologreplay,nonsense", "norecovery,ro", "rescue=nologreplay,ro,commit=x"] {
            let volume = parsed(list).unwrap_or_else(|failure| panic!("{list}: {failure}"));
            assert!(volume.nologreplay && volume.read_only, "{list}");
        }
        let volume = parsed("rescue=all,nonsense=1,ro").expect("taken");
        assert!(volume.nologreplay && volume.use_backup_root);
        assert!(parsed("rw,nologreplay").is_err(), "what needs ro is not left out silently");
        for list in ["ssd,bogus,noatime", "noatime,commit=soon"] {
            assert_eq!(parsed(list).expect("taken").atime, buttress_fs::Atime::No, "{list}");
        }
    }

    /// The error for an unknown option is one line. It names the most similar options of the volume
    /// and of the front end, but no option that is only for experiments.
    #[test]
    fn an_unknown_option_is_one_short_line() {
        for (wrong, meant) in
            [("sub_vol=a", "subvol"), ("io_urin", "io_uring"), ("noatim", "noatime")]
        {
            let text = taken(wrong).expect_err("unknown").to_string();
            assert!(text.contains(meant) && text.contains(wrong), "{text}");
            assert!(text.len() < 120 && !text.contains('\n'), "{text}");
        }
        for wrong in ["remount", "ro,rescue=nonsense", "elephants"] {
            taken(wrong).expect_err(wrong);
        }
        let fuse = buttress_fuse::KNOWN_OPTIONS.iter();
        for known in buttress_fs::OPTION_NAMES.iter().chain(fuse) {
            let experiments = [
                "alloc",
                "bg_lookup",
                "bg_read",
                "nocow_check",
                "read_batch",
                "reserve",
                "preempt",
            ];
            assert!(!experiments.contains(known), "{known}");
        }
    }
}
