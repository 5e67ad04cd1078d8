//! The end of the program: an exit code for scripts, and one line for people.

use std::error::Error;
use std::fmt;

/// Exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// 0: everything asked for was done.
    Success = 0,
    /// 1: something failed: a device, a name, a permission.
    Failure = 1,
    /// 2: the command line is wrong. Nothing was changed.
    Usage = 2,
    /// 3: the volume is damaged, or is not a btrfs volume at all.
    Corrupt = 3,
    /// 4: the volume or the order needs something that this program does not have.
    Unsupported = 4,
    /// 5: the volume is full.
    NoSpace = 5,
    /// 6: the target already holds something, and `--force` was not given.
    Refused = 6,
}

impl Exit {
    /// Returns the exit code for the number that another process of this program reported.
    pub fn of(number: &serde_json::Value) -> Self {
        let all = [Self::Usage, Self::Corrupt, Self::Unsupported, Self::NoSpace, Self::Refused];
        let is_it = |exit: &Self| number.as_u64() == Some(*exit as u64);
        all.into_iter().find(is_it).unwrap_or(Self::Failure)
    }
}

/// The exit codes, for `--help`.
pub const HELP: &str = "\
A place inside a volume is written IMG:/path; a host file that exists under the name as written is \
that file.

Exit codes: 0 done, 1 failed, 2 wrong command line or no work to stop or resume, 3 damaged or no \
btrfs volume, 4 not supported, 5 volume full, 6 refused without --force; 128 and the number of a \
signal that ended it, so 130 for Ctrl-C.";

/// The last words of an error of work that a request has ended.
const STOPPED: &str = "stopped by request";

/// The reason why the program ends early. It is printed as one line: first what failed, then the
/// causes.
#[derive(Debug)]
pub struct Failure {
    /// The number for scripts.
    pub exit: Exit,
    what: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// The result of calls with an error that can end the program.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure that has no cause below it.
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), source: None }
    }

    /// A failure with a cause below it.
    pub fn with_source(
        exit: Exit,
        what: impl Into<String>,
        source: impl Error + Send + Sync + 'static,
    ) -> Self {
        Self { exit, what: what.into(), source: Some(Box::new(source)) }
    }

    /// A failure of an operation on a volume; the kind of its cause chooses the exit code.
    pub fn of_volume(what: impl Into<String>, source: buttress_fs::Error) -> Self {
        let exit = exit_of(source.kind());
        Self { exit, what: what.into(), source: Some(Box::new(source)) }
    }

    /// A failure to open a device. The error names the device already.
    pub fn of_device(source: buttress_block::Error) -> Self {
        Self { exit: Exit::Failure, what: String::new(), source: Some(Box::new(source)) }
    }

    /// A failure to open a volume, wherever it is. The error names the volume already.
    pub fn of_remote(source: buttress_remote::Error) -> Self {
        use buttress_remote::Error;
        let exit = match source {
            Error::Block(source) => return Self::of_device(source),
            Error::Place { .. } | Error::OtherSize { .. } => Exit::Usage,
            Error::Damaged { .. } => Exit::Corrupt,
            Error::Version { .. } | Error::Unsafe { .. } | Error::Mixed { .. } => Exit::Unsupported,
            _ => Exit::Failure,
        };
        Self { exit, what: String::new(), source: Some(Box::new(source)) }
    }

    /// A failure because a request ended the work.
    #[must_use]
    pub fn stopped(what: impl fmt::Display) -> Self {
        Self::new(Exit::Failure, format!("{what}: {STOPPED}"))
    }

    /// Returns whether another program has the device open.
    pub fn is_locked(&self) -> bool {
        let cause = self.source.as_ref().and_then(|cause| cause.downcast_ref());
        matches!(cause, Some(buttress_block::Error::Locked { .. }))
    }

    /// Returns whether a file is no device because it is empty.
    pub fn is_empty_file(&self) -> bool {
        let cause = self.source.as_ref().and_then(|cause| cause.downcast_ref());
        matches!(cause, Some(buttress_block::Error::Empty { .. }))
    }

    /// Returns whether a request ended the work. A server sends only the text of an error.
    pub fn is_stopped(&self) -> bool {
        self.to_string().ends_with(STOPPED)
    }

    /// Returns whether the program that reads the output has ended. In that case this program stops
    /// without an error.
    pub fn is_closed_pipe(&self) -> bool {
        let cause = self.source.as_ref().and_then(|source| source.downcast_ref::<std::io::Error>());
        cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

fn exit_of(kind: buttress_fs::ErrorKind) -> Exit {
    use buttress_fs::ErrorKind;
    match kind {
        ErrorKind::Corrupt => Exit::Corrupt,
        ErrorKind::Unsupported => Exit::Unsupported,
        ErrorKind::NoSpace | ErrorKind::Quota => Exit::NoSpace,
        ErrorKind::Invalid => Exit::Usage,
        _ => Exit::Failure,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = vec![self.what.clone()];
        let mut cause = self.source.as_ref().map(|source| &**source as &(dyn Error + 'static));
        while let Some(error) = cause {
            let text = error.to_string();
            let last = parts.last_mut().expect("the vector begins with one part");
            // Prints each fact once. A cause that begins with the previous text replaces that text.
            // A cause is left out if the previous text ends with it.
            if text.starts_with(last.as_str()) {
                *last = text;
            } else if !last.ends_with(&text) {
                parts.push(text);
            }
            cause = error.source();
        }
        f.write_str(&parts.join(": "))
    }
}

/// Adds the failed operation to an error.
pub trait Context<T> {
    /// Wraps an error. `what` is called only for an error.
    fn context<W: Into<String>>(self, what: impl FnOnce() -> W) -> Result<T>;
}

impl<T> Context<T> for std::io::Result<T> {
    fn context<W: Into<String>>(self, what: impl FnOnce() -> W) -> Result<T> {
        self.map_err(|source| Failure {
            exit: Exit::Failure,
            what: what().into(),
            source: Some(Box::new(source)),
        })
    }
}

impl<T> Context<T> for rustix::io::Result<T> {
    fn context<W: Into<String>>(self, what: impl FnOnce() -> W) -> Result<T> {
        self.map_err(std::io::Error::from).context(what)
    }
}

impl<T> Context<T> for buttress_fs::Result<T> {
    fn context<W: Into<String>>(self, what: impl FnOnce() -> W) -> Result<T> {
        self.map_err(|source| Failure::of_volume(what(), source))
    }
}

impl<T> Context<T> for buttress_send::Result<T> {
    fn context<W: Into<String>>(self, what: impl FnOnce() -> W) -> Result<T> {
        use buttress_send::{Error, stream::StreamError};
        self.map_err(|source| {
            let exit = match root(&source) {
                Error::Volume(error) => exit_of(error.kind()),
                Error::Damaged { .. } => Exit::Corrupt,
                Error::Stream(StreamError::Version(_)) => Exit::Unsupported,
                _ => Exit::Failure,
            };
            Failure { exit, what: what().into(), source: Some(Box::new(source)) }
        })
    }
}

/// Returns the error at the bottom of nested errors of a stream.
fn root(error: &buttress_send::Error) -> &buttress_send::Error {
    match error {
        buttress_send::Error::Step { source, .. }
        | buttress_send::Error::Incomplete { source, .. } => root(source),
        error => error,
    }
}

impl<T> Context<T> for buttress_check::Result<T> {
    fn context<W: Into<String>>(self, what: impl FnOnce() -> W) -> Result<T> {
        self.map_err(|source| {
            let exit = match &source {
                buttress_check::Error::Volume(error) => exit_of_devices(error),
                buttress_check::Error::Tree(_) => Exit::Corrupt,
                _ => Exit::Failure,
            };
            Failure { exit, what: what().into(), source: Some(Box::new(source)) }
        })
    }
}

impl<T> Context<T> for buttress_volume::journal::Result<T> {
    fn context<W: Into<String>>(self, what: impl FnOnce() -> W) -> Result<T> {
        self.map_err(|source| {
            let exit = match &source {
                buttress_volume::journal::Error::Volume(error) => exit_of_devices(error),
                _ => Exit::Failure,
            };
            Failure { exit, what: what().into(), source: Some(Box::new(source)) }
        })
    }
}

/// The exit code for devices that hold no volume that a check can read.
fn exit_of_devices(error: &buttress_volume::Error) -> Exit {
    match error.kind() {
        buttress_volume::Kind::Unsupported => Exit::Unsupported,
        buttress_volume::Kind::Io => Exit::Failure,
        _ => Exit::Corrupt,
    }
}

/// Wraps errors of layers below `fs`. Each error type has one exit code.
macro_rules! context_for {
    ($($error:ty => $exit:expr),* $(,)?) => {$(
        impl<T> Context<T> for std::result::Result<T, $error> {
            fn context<W: Into<String>>(self, what: impl FnOnce() -> W) -> Result<T> {
                self.map_err(|source| Failure {
                    exit: $exit,
                    what: what().into(),
                    source: Some(Box::new(source)),
                })
            }
        }
    )*};
}

context_for! {
    buttress_block::Error => Exit::Failure,
    buttress_nbd::Error => Exit::Failure,
    buttress_volume::Error => Exit::Corrupt,
    buttress_tree::Error => Exit::Corrupt,
    buttress_format::Error => Exit::Corrupt,
    buttress_fs::make::MakeError => Exit::Failure,
    buttress_rescue::Error => Exit::Corrupt,
    serde_json::Error => Exit::Failure,
}
