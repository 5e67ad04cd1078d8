//! The server: accepts clients, gives each a thread, and shuts down.
//!
//! # Invariants
//!
//! - **S1** [`Server::serve`] returns with `Ok` only when every answered change is durable and no
//!   thread of a connection is left.
//! - **S2** A client has [`Options::handshake`] for all of its handshake. It has
//!   [`Options::timeout`] for each step within a request or an answer. Between requests the client
//!   may be silent for ever.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::address::{Address, Listener};
use crate::connections::{Connections, Member};
use crate::error::{Disconnect, Error};
use crate::export::{Export, Figures};
use crate::handshake;
use crate::stream::{Hurried, Stream};
use crate::transmission::Transmission;

/// Limits. Memory is bounded by connections x threads x [`crate::transmission::PIECE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The most clients at a time. Further clients are turned away.
    pub connections: usize,
    /// How many requests of one connection are served at a time.
    pub threads: usize,
    /// Whether addresses that other machines can reach are allowed.
    pub allow_remote: bool,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// How long a client may be silent in the middle of a request, or leave an answer unread.
    pub timeout: Duration,
    /// How long clients may take to receive their last answers when the server stops.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 64,
            threads: 16,
            allow_remote: false,
            handshake: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
            drain: Duration::from_secs(10),
        }
    }
}

/// A device on its addresses.
#[derive(Debug)]
pub struct Server {
    export: Arc<Export>,
    listeners: Vec<Listener>,
    options: Options,
    connections: Arc<Connections>,
    stopper: Stopper,
}

/// Ends a server, from anywhere.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Stop>);

#[derive(Debug)]
struct Stop {
    /// The flag that connections check.
    stopping: AtomicBool,
    /// The number of stop requests.
    asked: AtomicU32,
    event: OwnedFd,
}

impl Stopper {
    /// Ends the server. Requests that arrived whole are served, and everything written is flushed.
    /// A second call does not wait for clients to receive their answers.
    pub fn stop(&self) {
        self.0.asked.fetch_add(1, Ordering::AcqRel);
        self.0.stopping.store(true, Ordering::Release);
        // The write fails only if the counter is full, and a full counter wakes the server as well.
        let _ = rustix::io::write(&self.0.event, &1_u64.to_ne_bytes());
    }
}

impl Server {
    /// Listens at all of the addresses. No client is served yet.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocal`], [`Error::Taken`], [`Error::NotASocket`], [`Error::Listen`].
    pub fn bind(export: Export, addresses: &[Address], options: Options) -> Result<Self, Error> {
        let listeners = addresses
            .iter()
            .map(|address| Listener::bind(address, options.allow_remote))
            .collect::<Result<_, _>>()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = eventfd(0, flags).map_err(|errno| Error::Wait(errno.into()))?;
        let stopping = AtomicBool::new(false);
        let stop = Stop { stopping, asked: AtomicU32::new(0), event };
        let (export, connections) = (Arc::new(export), Connections::new());
        Ok(Self { export, listeners, options, connections, stopper: Stopper(Arc::new(stop)) })
    }

    /// The URIs of the export, one for each address.
    #[must_use]
    pub fn uris(&self) -> Vec<String> {
        self.listeners.iter().map(|listener| listener.uri(self.export.name())).collect()
    }

    /// The device on its addresses, for its figures while it is served.
    #[must_use]
    pub fn export(&self) -> Arc<Export> {
        Arc::clone(&self.export)
    }

    /// The handle that ends this server.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves until the server is stopped, and makes everything durable (S1).
    ///
    /// # Errors
    ///
    /// [`Error::Flush`], also for a flush that failed while serving; [`Error::Wait`].
    pub fn serve(mut self) -> Result<Figures, Error> {
        let waited = self.take_in();
        // From now on no new client can connect, and the addresses are free for the next server.
        self.listeners.clear();
        self.stopper.0.stopping.store(true, Ordering::Release);
        self.drain();
        let finished = self.export.finish();
        let figures = self.export.figures();
        tracing::info!(connections = self.connections.count(), ?figures, "stopped");
        waited.map_err(Error::Wait).and(finished).map(|()| figures)
    }

    /// Accepts clients until the server stops.
    fn take_in(&self) -> io::Result<()> {
        loop {
            self.wait(&self.listeners, None)?;
            if self.stopper.0.stopping.load(Ordering::Acquire) {
                return Ok(());
            }
            for listener in &self.listeners {
                match listener.accept() {
                    Ok(stream) => self.welcome(stream),
                    Err(error) if is_passing(&error) => {}
                    Err(error) => {
                        // Usually the process has no descriptors left. The waiting client is
                        // accepted after other clients have left.
                        tracing::warn!(%error, "cannot take a client in");
                        self.wait(&[], Some(PAUSE))?;
                    }
                }
            }
        }
    }

    /// Waits for a client, the stop, or `limit`.
    fn wait(&self, listeners: &[Listener], limit: Option<Timespec>) -> io::Result<()> {
        let mut polled: Vec<PollFd<'_>> = listeners
            .iter()
            .map(|one| PollFd::from_borrowed_fd(one.as_fd(), PollFlags::IN))
            .collect();
        polled.push(PollFd::new(&self.stopper.0.event, PollFlags::IN));
        match poll(&mut polled, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives a client a thread.
    fn welcome(&self, stream: Stream) {
        let Some(member) = self.connections.enter(stream, self.options.connections) else {
            tracing::warn!(max = self.options.connections, "too many clients: one is turned away");
            return;
        };
        let (export, options) = (Arc::clone(&self.export), self.options);
        let stopper = self.stopper.clone();
        let serve = move || {
            let number = member.number().0;
            let why = serve(&member, &export, options, &stopper.0.stopping);
            match &why {
                Disconnect::Done | Disconnect::Stopping => tracing::debug!(number, %why, "ended"),
                Disconnect::Io(cause) => tracing::info!(number, %why, %cause, "ended"),
                Disconnect::Torn(cause) => tracing::error!(number, %why, %cause, "ended"),
                Disconnect::Protocol(_) | Disconnect::Panicked => {
                    tracing::warn!(number, %why, "ended");
                }
            }
        };
        let thread = std::thread::Builder::new().name("nbd connection".to_owned());
        if let Err(error) = thread.spawn(serve) {
            tracing::warn!(%error, "no thread for a client: it is turned away");
        }
    }

    /// Ends reading on all connections and waits until they are gone. After the drain time, or
    /// after a second stop request, also ends writing.
    fn drain(&self) {
        let step = Duration::from_millis(50);
        let mut left = self.options.drain;
        self.connections.end_all(false);
        while !self.connections.wait_empty(step) {
            let is_urgent = self.stopper.0.asked.load(Ordering::Acquire) > 1;
            left = left.saturating_sub(step);
            if left.is_zero() || is_urgent {
                // These clients do not receive their answers. The server still waits for running
                // device requests, because none may run during the final flush (S1).
                self.connections.end_all(true);
            } else {
                // A connection may have been accepted after the previous call.
                self.connections.end_all(false);
            }
        }
    }
}

/// How long to wait when the system has no room for another client.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// One connection, from the first byte to the last.
fn serve(member: &Member, export: &Export, options: Options, stopping: &AtomicBool) -> Disconnect {
    let stream = member.stream();
    let begin = || {
        stream.prepare()?;
        let mut input = Hurried::new(stream, options.handshake);
        let mut output = Hurried::new(stream, options.handshake);
        let terms = handshake::negotiate(&mut input, &mut output, export)?;
        stream.set_timeouts(options.timeout, options.timeout)?;
        Ok::<_, Disconnect>(terms)
    };
    match begin() {
        Ok(terms) => {
            tracing::debug!(number = member.number().0, ?terms, "connected");
            let ends = (stream, stream);
            Transmission::new(ends, export, terms, options.threads, stopping)
                .serve(&|| stream.end(true))
        }
        Err(why) => why,
    }
}

/// Errors of a single client, which are no failure of listening.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
    )
}
