//! A connection's socket, of either family, and the time that it waits for its client.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A client's socket. Reading and writing go through shared references, by two threads at once.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Calls the same method on either kind of socket.
macro_rules! each {
    ($stream:expr, $socket:ident => $call:expr) => {
        match $stream {
            Stream::Unix($socket) => $call,
            Stream::Tcp($socket) => $call,
        }
    };
}

impl Stream {
    /// Prepares a socket: blocking, no delay of answers, and a check for vanished peers.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        each!(self, socket => socket.set_nonblocking(false))?;
        if let Self::Tcp(socket) = self {
            socket.set_nodelay(true)?;
            rustix::net::sockopt::set_socket_keepalive(socket, true)?;
        }
        Ok(())
    }

    /// Sets how long one read and one write may wait.
    pub(crate) fn set_timeouts(&self, read: Duration, write: Duration) -> io::Result<()> {
        each!(self, socket => {
            socket.set_read_timeout(Some(read))?;
            socket.set_write_timeout(Some(write))
        })
    }

    /// Ends reading, and writing too if `both`, in all threads.
    pub(crate) fn end(&self, both: bool) {
        let how = if both { Shutdown::Both } else { Shutdown::Read };
        // A socket that is closed already is fine.
        let _ = each!(self, socket => socket.shutdown(how));
    }
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        each!(self, socket => (&*socket).read(buf))
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        each!(self, socket => (&*socket).write(buf))
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        each!(self, socket => (&*socket).write_vectored(bufs))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream with one deadline for all of its steps.
#[derive(Debug)]
pub(crate) struct Hurried<'a> {
    stream: &'a Stream,
    deadline: Instant,
}

impl<'a> Hurried<'a> {
    pub(crate) fn new(stream: &'a Stream, limit: Duration) -> Self {
        Self { stream, deadline: Instant::now() + limit }
    }

    fn hurry(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_timeouts(left, left)
    }
}

impl Read for Hurried<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.hurry()?;
        self.stream.read(buf)
    }
}

impl Write for Hurried<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.hurry()?;
        self.stream.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
