//! What a running mount or server tells of itself: a socket for each, and the verbs that ask.
//!
//! # Place
//!
//! `mount` and `nbd` open a [`Live`] and give it sections: a name, and a closure that returns
//! figures. `stats` and `cache` ask. Verbs that work on a volume as a whole give their [`Order`] to
//! the mount that has it. What it says to an order is lines of JSON: any number of steps, then what
//! came of it. A section's figures are names and scalars, or objects of scalars, in the order in
//! which a person reads them. What ends in `bytes` is shown as a size. [`subject`] says which mount
//! a name means, and [`place`] which a path of the host means.
//!
//! # Invariants
//!
//! - **L1** The folder of the sockets belongs to the user alone. So a client that can connect may
//!   do what the user may do.
//! - **L2** Nothing here ends or holds up a mount: without a folder there is a warning and no
//!   socket.

mod farewell;
mod join;
mod place;
mod subject;
mod turn;

use std::fs::DirBuilder;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use buttress_cache::CacheDevice;
use buttress_fs::Filesystem;
use buttress_fuse::{Beside, Unmounter};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::exit::{Context, Exit, Failure, Result};
use crate::figures::Figures;
use crate::order::{Order, Step, Watch};
use crate::{cached, closing, names};
use farewell::{Farewells, is_patience};

pub(crate) use farewell::{Farewell, Left};
pub(crate) use join::{Joining, Joins, Wish, join};
pub(crate) use place::{Mounted, Served, ground, no_image, served, submounts};
pub(crate) use subject::Subject;
pub(crate) use turn::Turn;

/// How long an answer may take that takes no work.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a question at most.
const QUESTION_MAX: u64 = 64 << 10;
/// How often the client of an order is told how far it is, and whether it still waits is looked at.
const STEP_PERIOD: Duration = Duration::from_millis(100);
/// How long a look takes at whether the client stopped.
const LOOK: Duration = Duration::from_millis(1);

/// One part of a process and its figures now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Section {
    pub name: String,
    pub figures: Figures,
}

/// What a process tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub pid: u32,
    pub subject: Subject,
    pub sections: Vec<Section>,
    /// Its mount is gone, and it makes durable what was written.
    #[serde(default)]
    pub is_closing: bool,
}

/// Carries an order out: the order, the volume, its name in errors, its mount, and what watches.
pub(crate) type Executor =
    fn(&Order, &Filesystem, &str, Option<&Beside>, Watch<'_>) -> Result<Value>;

/// The volume that takes orders.
struct OpenVolume {
    fs: Filesystem,
    beside: Option<Beside>,
    executor: Executor,
}

type Source = Box<dyn Fn() -> Figures + Send + Sync>;

/// What a process will tell once it listens.
#[derive(Default)]
pub(crate) struct Live {
    subject: Subject,
    sections: Vec<(&'static str, Source)>,
    cache: Option<Arc<CacheDevice>>,
    volume: Option<OpenVolume>,
    mount: Option<Unmounter>,
    joins: Option<Joins>,
    farewells: Arc<Farewells>,
}

/// A socket that listens; gone with this.
pub(crate) struct Listening {
    path: Option<PathBuf>,
    farewells: Arc<Farewells>,
}

impl Listening {
    /// Tells those that wait for the end that the volume is closed, or why it could not be.
    pub(crate) fn is_closed(&self, failure: Option<String>) {
        self.farewells.tell(failure);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Left behind, it is removed by the next verb that asks.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Live {
    pub(crate) fn new(subject: Subject) -> Self {
        Self { subject, ..Self::default() }
    }

    /// Adds a part. `figures` is called for every question, from any thread.
    pub(crate) fn section(
        &mut self,
        name: &'static str,
        figures: impl Fn() -> Figures + Send + Sync + 'static,
    ) {
        self.sections.push((name, Box::new(figures)));
    }

    /// Adds a cache: its figures, and the messages it takes.
    pub(crate) fn cache(&mut self, device: &Arc<CacheDevice>) {
        self.cache = Some(Arc::clone(device));
        let device = Arc::clone(device);
        self.section("cache", move || cached::figures(&device));
    }

    /// Adds the mount that it is about.
    pub(crate) fn mount(&mut self, mount: Unmounter) {
        self.subject.target = Some(mount.target().to_owned());
        self.subject.device = mount.device();
        self.mount = Some(mount);
    }

    /// Adds what makes more mounts of the volume.
    pub(crate) fn join(&mut self, joins: Joins) {
        self.joins = Some(joins);
    }

    /// Whether it had a mount that is gone: what is left of it is being made durable.
    fn is_closing(&self) -> bool {
        let Some(mount) = &self.mount else { return false };
        mount.look();
        mount.is_gone()
    }

    /// Adds a volume: the orders that it takes; and what keeps its mount of one mind with it.
    pub(crate) fn volume(&mut self, fs: &Filesystem, beside: Option<Beside>, executor: Executor) {
        self.volume = Some(OpenVolume { fs: fs.clone(), beside, executor });
    }

    /// Answers from now on, until the process ends (L2).
    pub(crate) fn listen(self) -> Listening {
        let farewells = Arc::clone(&self.farewells);
        let path = self.start().inspect_err(|error| {
            tracing::warn!(%error, "no program can ask for figures");
        });
        Listening { path: path.ok(), farewells }
    }

    fn start(self) -> std::io::Result<PathBuf> {
        let path = folder()?.join(format!("{}.sock", std::process::id()));
        match std::fs::remove_file(&path) {
            // Of a process that had our number before.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let this = Arc::new(self);
        std::thread::Builder::new().name("live".to_owned()).spawn(move || {
            for stream in listener.incoming().filter_map(std::result::Result::ok) {
                let this = Arc::clone(&this);
                // A flush of a cache may take long: others get their answers meanwhile.
                let answer = move || {
                    if let Err(error) = this.answer(&stream) {
                        tracing::debug!(%error, "somebody asked and went away");
                    }
                };
                if let Err(error) =
                    std::thread::Builder::new().name("live-answer".to_owned()).spawn(answer)
                {
                    tracing::warn!(%error, "a question is not answered");
                }
            }
        })?;
        Ok(path)
    }

    fn answer(&self, stream: &UnixStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut question = String::new();
        BufReader::new(stream.take(QUESTION_MAX)).read_line(&mut question)?;
        let document = match question.trim_end().split_once(' ') {
            Some(("cache", message)) => self.message(message),
            Some(("order", order)) => self.obey(order, stream)?,
            Some(("join", wish)) if let Some(joins) = &self.joins => {
                return joins.answer(wish, || self.is_closing(), stream);
            }
            None if question.trim_end() == farewell::QUESTION => {
                return self.farewells.serve(stream, || self.is_closing());
            }
            None if question.trim_end() == place::QUESTION => json!(self.submounts()),
            _ => serde_json::to_value(self.tell())?,
        };
        let mut stream = stream;
        // In one piece: a document writes itself in thousands.
        stream.write_all(format!("{document}\n").as_bytes())
    }

    fn tell(&self) -> Answer {
        let sections = self.sections.iter();
        let sections =
            sections.map(|(name, source)| Section { name: (*name).to_owned(), figures: source() });
        let mut subject = self.subject.clone();
        let seen = self.mount.as_ref().and_then(Unmounter::seen).unwrap_or_default();
        // The first mount may be gone while others are there.
        if let Some(first) = seen.first()
            && seen.iter().all(|one| Some(&one.point) != subject.target.as_ref())
        {
            subject.target = Some(first.point.clone());
        }
        let is_closing = self.is_closing();
        if is_closing {
            (subject.target, subject.device) = (None, None);
        }
        Answer { pid: std::process::id(), subject, sections: sections.collect(), is_closing }
    }

    /// Where subvolumes have mounts of their own, by names that need not be text, and the device
    /// number of each.
    fn submounts(&self) -> Vec<(Vec<u8>, u64)> {
        let beside = self.volume.as_ref().and_then(|volume| volume.beside.as_ref());
        let mounts = beside.map(Beside::submounts).unwrap_or_default();
        mounts.into_iter().map(|(at, device)| (at.into_os_string().into_vec(), device)).collect()
    }

    /// Carries an order out and tells the client how far it is. The client ends it by closing its
    /// end.
    fn obey(&self, order: &str, stream: &UnixStream) -> std::io::Result<Value> {
        let Some(OpenVolume { fs, beside, executor }) = &self.volume else {
            return Ok(
                json!({ "error": "it has no volume that is mounted", "exit": Exit::Failure as u8 }),
            );
        };
        if self.is_closing() {
            let what = "it was unmounted, and is being closed: ask again when it is done";
            return Ok(json!({ "error": what, "exit": Exit::Failure as u8 }));
        }
        let order: Order = match serde_json::from_str(order) {
            Ok(order) => order,
            Err(error) => {
                return Ok(json!({ "error": error.to_string(), "exit": Exit::Usage as u8 }));
            }
        };
        stream.set_read_timeout(Some(LOOK))?;
        let mut told = None::<Instant>;
        let mut goes_on = true;
        let mut watch = |step: &Step| {
            if told.is_none_or(|told| told.elapsed() >= STEP_PERIOD) {
                told = Some(Instant::now());
                let mut stream = stream;
                let said = writeln!(stream, "{}", json!({ "step": step }));
                let gone = matches!(stream.read(&mut [0]), Ok(0));
                goes_on &= said.is_ok() && !gone;
            }
            goes_on
        };
        let name = self.subject.image.display().to_string();
        Ok(match executor(&order, fs, &name, beside.as_ref(), &mut watch) {
            Ok(done) => json!({ "done": done }),
            Err(failure) => json!({ "error": failure.to_string(), "exit": failure.exit as u8 }),
        })
    }

    fn message(&self, message: &str) -> Value {
        let told = match &self.cache {
            Some(cache) => cache.message(message).map_err(|error| error.to_string()),
            None => Err("it has no cache".to_owned()),
        };
        match told {
            Ok(()) => json!({ "done": message }),
            Err(error) => json!({ "error": error }),
        }
    }
}

/// The folder of the sockets, made if it is not there (L1). `BUTTRESS_RUNTIME_DIR` names another
/// one.
fn folder() -> std::io::Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let folder = if let Some(folder) = std::env::var_os("BUTTRESS_RUNTIME_DIR") {
        PathBuf::from(folder)
    } else if uid.is_root() {
        PathBuf::from("/run/buttress")
    } else if let Some(folder) = std::env::var_os("XDG_RUNTIME_DIR") {
        PathBuf::from(folder).join("buttress")
    } else {
        std::env::temp_dir().join(format!("buttress-{}", uid.as_raw()))
    };
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = std::fs::symlink_metadata(&folder)?;
    if !found.is_dir() || found.uid() != uid.as_raw() || found.mode() & 0o077 != 0 {
        let what = format!("{}: is not a folder of this user alone", folder.display());
        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, what));
    }
    Ok(folder)
}

/// Asks all mounts and servers of this user. What is left of those that are gone is removed.
pub(crate) fn all() -> Result<Vec<(PathBuf, Answer)>> {
    let folder = folder().context(|| "the folder of running mounts")?;
    let mut answers = Vec::new();
    for entry in std::fs::read_dir(&folder).context(|| folder.display().to_string())? {
        let path = entry.context(|| folder.display().to_string())?.path();
        if path.extension().is_none_or(|extension| extension != "sock") {
            continue;
        }
        match ask(&path, "stats", Some(PATIENCE)) {
            Ok(text) => {
                // One that ended between question and answer said nothing.
                if let Ok(answer) = serde_json::from_str(&text) {
                    answers.push((path, answer));
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                // Another process may have done so.
                let _ = std::fs::remove_file(&path);
            }
            Err(error) => tracing::debug!(socket = names::of_path(&path), %error, "no answer"),
        }
    }
    answers.sort_by(|(_, a): &(_, Answer), (_, b)| a.subject.image.cmp(&b.subject.image));
    Ok(answers)
}

/// As [`all`], for callers that can do without: empty where the folder cannot be had.
pub(crate) fn reachable() -> Vec<(PathBuf, Answer)> {
    all().unwrap_or_else(|error| {
        tracing::debug!(%error, "running mounts cannot be asked");
        Vec::new()
    })
}

/// The mount or server of `path`: an image, a cache, or a folder on a mount.
pub(crate) fn find(path: &Path) -> Result<Option<(PathBuf, Answer)>> {
    let full = path.canonicalize().context(|| path.display().to_string())?;
    if full.is_dir() {
        return Ok(served(path)?.map(|Served { socket, answer, .. }| (socket, answer)));
    }
    let found = reachable().into_iter().find(|(_, answer)| answer.subject.serves(&full));
    if found.as_ref().is_some_and(|(_, answer)| answer.is_closing) {
        // The volume is free when that is over.
        closing::until_closed(&full);
        return Ok(None);
    }
    Ok(found)
}

/// [`find`], where there must be one.
pub(crate) fn must_find(path: &Path) -> Result<(PathBuf, Answer)> {
    let none = || {
        let path = path.display();
        Failure::new(Exit::Failure, format!("{path}: no mount or server of this user has it open"))
    };
    find(path)?.ok_or_else(none)
}

/// Sends a message to the cache of the server at `socket`, and waits until it is done.
pub(crate) fn tell_cache(socket: &Path, message: &str) -> Result<()> {
    let text =
        ask(socket, &format!("cache {message}"), None).context(|| socket.display().to_string())?;
    let answer: Value = serde_json::from_str(&text).context(|| "the answer")?;
    match answer["error"].as_str() {
        Some(error) => Err(Failure::new(Exit::Failure, error)),
        None => Ok(()),
    }
}

/// Gives an order to the mount that listens at `socket`, and waits until it is carried out. When
/// `stop` is set, it is ended as soon as it can be.
pub(crate) fn give(
    socket: &Path,
    order: &Order,
    stop: &AtomicBool,
    watch: Watch<'_>,
) -> Result<Value> {
    let name = || socket.display().to_string();
    let text = serde_json::to_string(order).context(|| "the order")?;
    let mut stream = UnixStream::connect(socket).context(name)?;
    writeln!(stream, "order {text}").context(name)?;
    stream.set_read_timeout(Some(STEP_PERIOD)).context(name)?;
    let mut answers = BufReader::new(stream.try_clone().context(name)?);
    let mut line = String::new();
    let mut is_told = false;
    loop {
        if stop.load(Ordering::Relaxed) && !is_told {
            is_told = true;
            stream.shutdown(std::net::Shutdown::Write).context(name)?;
        }
        match answers.read_line(&mut line) {
            Ok(0) => return Err(Failure::new(Exit::Failure, "the mount ended before it answered")),
            Ok(_) => {}
            // What came of a line stays in it.
            Err(error) if is_patience(&error) => continue,
            Err(error) => return Err(error).context(name),
        }
        let answer: Value = serde_json::from_str(&line).context(|| "the answer")?;
        line.clear();
        if let Some(error) = answer["error"].as_str() {
            return Err(Failure::new(Exit::of(&answer["exit"]), error));
        }
        match answer.get("step").map(Step::deserialize) {
            Some(step) => drop(watch(&step.context(|| "the answer")?)),
            None => return Ok(answer["done"].clone()),
        }
    }
}

fn ask(socket: &Path, question: &str, patience: Option<Duration>) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(patience)?;
    writeln!(stream, "{question}")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
