//! Each running mount and server listens on a socket. Verbs ask there for figures and give orders.
//!
//! # Place
//!
//! `mount` and `nbd` create a [`Live`] and add sections. A section is a name and a closure that
//! returns figures. `stats` and `cache` ask for these figures. A verb that works on a whole volume
//! gives its [`Order`] to the mount that has the volume open. The mount answers with lines of JSON:
//! any number of steps, then the result.
//!
//! The figures of a section are names with scalars, or with objects of scalars, in the order in
//! which verbs show them. In the section [`LIST`] the names are numbers. A figure with a name that
//! ends in `bytes` is shown as a size. [`subject`] finds the mount by its names, and [`place`]
//! finds it for a path of the host.
//!
//! # Invariants
//!
//! - **L2** No failure here ends or delays a mount. Without a folder for sockets there is a warning
//!   and no socket.

mod ask;
mod close_wait;
mod descriptor;
mod give;
mod give_up;
mod held;
mod hold;
mod join;
mod mount_lock;
mod place;
mod subject;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use buttress_block::Device;
use buttress_cache::CacheDevice;
use buttress_fs::Filesystem;
use buttress_fuse::{KernelSync, Unmounter};
use buttress_remote::{Opened, RemoteDevice};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::cached;
use crate::exit::{Exit, Result};
use crate::figures::Figures;
use crate::names;
use crate::order::{Order, Step, Watch};
use crate::sockets::{self, folder};
use crate::target::{Open, Stream};
use ask::ANSWER_TIMEOUT;
use close_wait::CloseWaiters;
use give::STEP_PERIOD;

pub use ask::{Answer, Section, all, reachable};
pub use close_wait::{CloseWait, MountUse};
pub use give::{find, give, give_with_stream, must_find, tell_cache};
pub use give_up::give_up;
pub use held::held_devices;
pub use hold::{Hold, hold};
pub use join::{JoinHandler, JoinRequest, Joining, join};
pub use mount_lock::MountLock;
pub use place::{
    Served, all_of_same, describe_host_mount, is_ours, mounted_from, no_image, served, submounts,
};
pub use subject::Subject;
use subject::{FileId, open_files};

/// The largest question, in bytes.
const QUESTION_MAX: usize = 64 << 10;
/// How long each check waits for input of the client. The end of the input means that the client
/// has ended.
const LOOK: Duration = Duration::from_millis(1);

/// Carries out an order. Its arguments are the order, the volume, the stream of the order, and the
/// watcher.
pub type Executor = fn(&Order, &Open<'_>, Stream<'_>, Watch<'_>) -> Result<Value>;

/// The volume that takes orders.
struct OpenVolume {
    fs: Filesystem,
    kernel_sync: Option<KernelSync>,
    executor: Executor,
    /// The folder that relative names of devices begin in.
    folder: PathBuf,
}

impl OpenVolume {
    /// The paths of the devices. The names of devices may be relative.
    fn device_paths(&self) -> impl Iterator<Item = PathBuf> {
        let devices = self.fs.devices().into_iter();
        devices.map(|device| self.folder.join(names::to_path(&device.name)))
    }
}

/// The section that is a list. Its names are numbers.
pub const LIST: &str = "waiters";

type Source = Box<dyn Fn() -> Figures + Send + Sync>;

/// Collects the reports and request handlers of a process until [`Live::listen`] starts the socket.
#[derive(Default)]
pub struct Live {
    subject: Subject,
    sections: Vec<(&'static str, Source)>,
    cache: Option<Arc<CacheDevice>>,
    /// The volume in a store that the process writes.
    store: Option<Arc<RemoteDevice>>,
    volume: Option<OpenVolume>,
    mount: Option<Unmounter>,
    /// The files of devices that joined the volume since it was opened.
    ///
    /// Unranked: a leaf.
    added: Mutex<Vec<FileId>>,
    join_handler: Option<JoinHandler>,
    close_waiters: Arc<CloseWaiters>,
}

/// A socket that listens. The socket is removed when this value is dropped.
pub struct Listening {
    path: Option<PathBuf>,
    close_waiters: Arc<CloseWaiters>,
}

impl Listening {
    /// Tells all programs that wait for the end of the mount that the volume is closed, or why
    /// closing failed.
    pub fn report_closed(&self, failure: Option<String>) {
        self.close_waiters.report(failure);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // If the removal fails, the next verb that asks removes the socket.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Live {
    /// Creates a description that has only the subject.
    pub fn new(subject: Subject) -> Self {
        Self { subject, ..Self::default() }
    }

    /// Adds a section. `figures` is called for every question, from any thread.
    pub fn add_section(
        &mut self,
        name: &'static str,
        figures: impl Fn() -> Figures + Send + Sync + 'static,
    ) {
        self.sections.push((name, Box::new(figures)));
    }

    /// Adds a cache: its figures, and the messages it takes.
    pub fn add_cache(&mut self, device: &Arc<CacheDevice>) {
        self.cache = Some(Arc::clone(device));
        let device = Arc::clone(device);
        self.add_section("cache", move || cached::figures(&device));
    }

    /// Adds a device of the volume. If it is in a store and written, the process tells at its end
    /// what it waits for, and takes the order to give up.
    pub fn add_device(&mut self, device: &Opened) {
        if let Opened::Remote(device) = device
            && device.writable()
        {
            self.store = Some(Arc::clone(device));
        }
    }

    /// Adds the mount that this process serves.
    pub fn add_mount(&mut self, mount: Unmounter) {
        self.subject.target = Some(mount.target().to_owned());
        self.subject.device = mount.device();
        self.mount = Some(mount);
    }

    /// Adds the handler that makes more mounts of the volume.
    pub fn add_join_handler(&mut self, join_handler: JoinHandler) {
        self.join_handler = Some(join_handler);
    }

    /// Returns whether the mount has been removed. Its last changes are then being made durable.
    fn is_closing(&self) -> bool {
        let Some(mount) = &self.mount else { return false };
        mount.is_gone()
    }

    /// Adds a volume with the orders that it takes. `kernel_sync` keeps the mount in step with the
    /// volume. Call this function in the folder from which the devices were named, because names
    /// may be relative.
    pub fn add_volume(
        &mut self,
        fs: &Filesystem,
        kernel_sync: Option<KernelSync>,
        executor: Executor,
    ) {
        let folder = std::env::current_dir().unwrap_or_default();
        self.volume = Some(OpenVolume { fs: fs.clone(), kernel_sync, executor, folder });
    }

    /// Answers from now on, until the process ends (L2).
    pub fn listen(self) -> Listening {
        let close_waiters = Arc::clone(&self.close_waiters);
        let path = self.start().inspect_err(|error| {
            tracing::warn!(%error, "no program can ask for figures");
        });
        Listening { path: path.ok(), close_waiters }
    }

    fn start(self) -> std::io::Result<PathBuf> {
        let path = folder()?.join(format!("{}.sock", std::process::id()));
        match std::fs::remove_file(&path) {
            // The socket belonged to an earlier process with our number.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = sockets::listen(&path)?;
        let this = Arc::new(self);
        if let Some(store) = &this.store {
            give_up::watch(&this, store);
        }
        std::thread::Builder::new().name("live".to_owned()).spawn(move || {
            for stream in listener.incoming().filter_map(std::result::Result::ok) {
                let this = Arc::clone(&this);
                // A flush of a cache may take long, and other clients get their answers meanwhile.
                let answer = move || {
                    if let Err(error) = this.answer(&stream) {
                        tracing::debug!(%error, "a program asked and went away");
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
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let (question, given) = descriptor::receive(stream, QUESTION_MAX)?;
        let question = String::from_utf8(question).map_err(std::io::Error::other)?;
        let document = match question.trim_end().split_once(' ') {
            Some(("cache", message)) => self.message(message),
            Some(("order", order)) => self.carry_out(order, given, stream)?,
            Some(("join", request)) => match &self.join_handler {
                Some(handler) => {
                    return handler.answer(request, || self.is_closing(), stream);
                }
                None => serde_json::to_value(self.describe())?,
            },
            None if question.trim_end() == close_wait::QUESTION => {
                return self.close_waiters.serve(stream, || self.is_closing());
            }
            None if question.trim_end() == give_up::QUESTION => return self.give_up(stream),
            None if question.trim_end() == hold::QUESTION => match self.holder() {
                Ok(volume) => {
                    return volume.hold(&self.subject.image.display().to_string(), stream);
                }
                Err(refusal) => refusal,
            },
            None if question.trim_end() == place::QUESTION => json!(self.submounts()),
            _ => serde_json::to_value(self.describe())?,
        };
        let mut stream = stream;
        // Sends the document by one write. Without this, serde_json would write it in thousands of
        // pieces.
        stream.write_all(format!("{document}\n").as_bytes())
    }

    /// Returns the volume if [`hold`] can keep the nodes of its last commit from reuse. Otherwise
    /// returns the answer with the reason.
    fn holder(&self) -> Result<&OpenVolume, Value> {
        let refuse = |what, exit| Err(json!({ "error": what, "exit": exit as u8 }));
        match &self.volume {
            None => refuse("it has no volume that is mounted", Exit::Failure),
            Some(_) if self.is_closing() => Err(json!({ "closing": true })),
            Some(_) if self.cache.is_some() => {
                let what = "it has a cache, and its devices alone are no whole volume: \
                            unmount it first";
                refuse(what, Exit::Unsupported)
            }
            Some(volume) => Ok(volume),
        }
    }

    fn describe(&self) -> Answer {
        let sections = self.sections.iter();
        let sections =
            sections.map(|(name, source)| Section { name: (*name).to_owned(), figures: source() });
        let mut subject = self.subject.clone();
        let seen = self.mount.as_ref().and_then(Unmounter::visible_mounts).unwrap_or_default();
        // The first mount may have been removed while others exist.
        if let Some(first) = seen.first()
            && seen.iter().all(|one| Some(&one.point) != subject.target.as_ref())
        {
            subject.target = Some(first.point.clone());
        }
        if let Some(volume) = &self.volume
            && let Some(open) = open_files()
        {
            subject.more.extend(self.added.lock().iter());
            subject.keep_open(&open, volume.device_paths());
        }
        let is_closing = self.is_closing();
        if is_closing {
            (subject.target, subject.device) = (None, None);
        }
        Answer { pid: std::process::id(), subject, sections: sections.collect(), is_closing }
    }

    /// Returns the places at which subvolumes have their own mounts, and the device number of each.
    /// The names of the places need not be UTF-8.
    fn submounts(&self) -> Vec<(Vec<u8>, u64)> {
        let kernel_sync = self.volume.as_ref().and_then(|volume| volume.kernel_sync.as_ref());
        let mounts = kernel_sync.map(KernelSync::submounts).unwrap_or_default();
        mounts.into_iter().map(|(at, device)| (at.into_os_string().into_vec(), device)).collect()
    }

    /// Carries out an order and reports its progress to the client. The client ends the order by
    /// closing its end of the socket.
    fn carry_out(
        &self,
        order: &str,
        given: Option<OwnedFd>,
        stream: &UnixStream,
    ) -> std::io::Result<Value> {
        let Some(OpenVolume { fs, kernel_sync, executor, .. }) = &self.volume else {
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
        let mut reported_at = None::<Instant>;
        let mut goes_on = true;
        let mut watch = |step: &Step| {
            if reported_at.is_none_or(|at| at.elapsed() >= STEP_PERIOD) {
                reported_at = Some(Instant::now());
                let mut stream = stream;
                let sent = writeln!(stream, "{}", json!({ "step": step }));
                let gone = matches!(stream.read(&mut [0]), Ok(0));
                goes_on &= sent.is_ok() && !gone;
            }
            goes_on
        };
        let name = self.subject.image.display().to_string();
        let open = Open { fs, name: &name, kernel_sync: kernel_sync.as_ref() };
        let mut file = given.map(File::from);
        let with = match (&order, &mut file) {
            (Order::Send(_), Some(file)) => Stream::Out(file),
            (Order::Receive { .. }, Some(file)) => Stream::In(file),
            _ => Stream::None,
        };
        // The identity is taken before the work: a replacement may take hours.
        let coming = match &order {
            Order::DeviceAdd { new, .. } | Order::DeviceReplace { new, .. } => FileId::at(new),
            _ => None,
        };
        Ok(match executor(&order, &open, with, &mut watch) {
            Ok(done) => {
                if let Some(file) = coming {
                    self.note_added(file);
                }
                json!({ "done": done })
            }
            Err(failure) => json!({ "error": failure.to_string(), "exit": failure.exit as u8 }),
        })
    }

    /// Notes a device that is part of the volume now. If the name led to another file before that
    /// file was opened, the file is not open here. Then verbs find the volume by its other names.
    fn note_added(&self, file: FileId) {
        let Some(open) = open_files() else { return };
        let mut added = self.added.lock();
        added.retain(|one| *one != file && one.is_in(&open));
        if file.is_in(&open) {
            added.push(file);
        }
    }

    fn message(&self, message: &str) -> Value {
        let outcome = match &self.cache {
            Some(cache) => cache.message(message).map_err(|error| error.to_string()),
            None => Err("it has no cache".to_owned()),
        };
        match outcome {
            Ok(()) => json!({ "done": message }),
            Err(error) => json!({ "error": error }),
        }
    }
}
