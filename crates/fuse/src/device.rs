//! Requests over `/dev/fuse`: one read returns a request, one write sends its answer.
//!
//! # What must hold
//!
//! - A request is answered through the descriptor that it was read from: the kernel looks for the
//!   request there. Each thread has a descriptor of its own, so the reads of the threads do not
//!   contend.
//! - The memory of a message belongs to one request at a time. It goes back to the pool with the
//!   answer.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use buttress_base::activity;
use buttress_protocol::{
    Errno, Head, IN_LEN, InitFlags, OUT_LEN, Offer, OutHead, Parts, Terms, opcode,
};
use rustix::ioctl::{Setter, ioctl};

use crate::exchange::Exchange;
use crate::message_pool::{Buffer, MessagePool};
use crate::pool;

/// The maximum payload of a request or an answer, after its fixed parts, in bytes.
pub(crate) const PAYLOAD_LEN: usize = 1 << 20;
/// Space for headers and fixed parts. The kernel refuses a read with less than 80 bytes for them.
const FIXED_LEN: usize = 4096;
/// Space for an answer of ioctl(2) and its header: 14 bits of the command tell the answer's length.
const IOCTL_LEN: usize = (16 << 10) + 64;
/// `FUSE_DEV_IOC_CLONE`: attaches a new descriptor to an existing connection.
const CLONE: rustix::ioctl::Opcode = 0x8004_e500;

/// A connection to the kernel after the exchange of INIT, for one thread that reads requests.
#[derive(Debug)]
pub(crate) struct Device {
    channel: Arc<OwnedFd>,
    pool: Arc<MessagePool>,
}

/// Sends notifications to the kernel: messages that answer no request.
#[derive(Clone, Debug)]
pub(crate) struct Notifier(Arc<OwnedFd>);

/// A request, in memory that its answer is written into.
#[derive(Debug)]
pub(crate) struct Message {
    channel: Arc<OwnedFd>,
    pool: Arc<MessagePool>,
    head: Head,
    bytes: Buffer,
    /// Bytes of the request.
    len: usize,
    is_answered: bool,
}

impl Device {
    /// Negotiates features with the kernel (INIT). Returns the features that both sides support.
    ///
    /// # Errors
    ///
    /// Errors of the system, or `InvalidData` if the first message is no INIT.
    pub(crate) fn negotiate(channel: OwnedFd, terms: &Terms) -> io::Result<(Self, InitFlags)> {
        let pool = Arc::new(MessagePool::new(FIXED_LEN + PAYLOAD_LEN));
        let device = Self { channel: Arc::new(channel), pool };
        loop {
            let Some(mut message) = device.read_one()? else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            if message.head.opcode != opcode::INIT {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "no greeting"));
            }
            // The kernel's version decides how many fields INIT has, so the decoder gets everything
            // that follows the header.
            let offer = match Offer::decode(message.rest()) {
                Ok(offer) => offer,
                Err(errno) => {
                    message.answer(Err(errno));
                    return Err(io::Error::from_raw_os_error(errno.code()));
                }
            };
            let agreed = offer.agreed(terms);
            tracing::debug!(version = ?offer.version(), ?agreed, "the kernel is there");
            let answer = offer.answer(terms);
            message.answer_buffer()[..answer.len()].copy_from_slice(&answer);
            message.answer(Ok(answer.len()));
            if !offer.is_newer() {
                return Ok((device, agreed));
            }
        }
    }

    /// Returns a notifier for this connection.
    pub(crate) fn notifier(&self) -> Notifier {
        Notifier(Arc::clone(&self.channel))
    }

    /// Starts `threads` threads that read requests and handle them with `work`. Returns when the
    /// connection has ended.
    ///
    /// # Errors
    ///
    /// An error of the system that ended a thread.
    pub(crate) fn serve(
        self,
        threads: usize,
        work: impl Fn(Message) + Clone + Send + 'static,
    ) -> io::Result<()> {
        let mut devices = Vec::with_capacity(threads);
        for _ in 1..threads {
            devices.push(self.one_more());
        }
        devices.push(self);
        let start = |(number, device): (usize, Self)| {
            let work = work.clone();
            let thread = std::thread::Builder::new().name(format!("fuse-{number}"));
            thread.spawn(move || device.work_all(work))
        };
        let threads: Vec<_> =
            devices.into_iter().enumerate().map(start).collect::<Result<_, _>>()?;
        // The closure may hold values that must be dropped with the last thread.
        drop(work);
        let ended = |thread: JoinHandle<io::Result<()>>| {
            let panic = || Err(io::Error::other("a thread of the session ended in a panic"));
            thread.join().unwrap_or_else(|_| panic())
        };
        let ends: Vec<_> = threads.into_iter().map(ended).collect();
        ends.into_iter().collect()
    }

    /// A `Device` for one more thread. It has a descriptor of its own, or shares the present
    /// descriptor if the kernel refuses another.
    #[expect(unsafe_code, reason = "rustix has no name for this command")]
    fn one_more(&self) -> Self {
        let pool = Arc::clone(&self.pool);
        let opened = File::options().read(true).write(true).open("/dev/fuse");
        let cloned = opened.and_then(|other| {
            let source = self.channel.as_raw_fd().cast_unsigned();
            // SAFETY: the command reads a `u32` that names a descriptor. `source` is an open
            // descriptor.
            unsafe { ioctl(&other, Setter::<CLONE, u32>::new(source)) }?;
            Ok(Arc::new(OwnedFd::from(other)))
        });
        Self { channel: cloned.unwrap_or_else(|_| Arc::clone(&self.channel)), pool }
    }

    fn work_all(self, work: impl Fn(Message)) -> io::Result<()> {
        activity::register();
        while let Some(message) = self.read_one()? {
            work(message);
        }
        Ok(())
    }

    /// Waits for a request and reads it. Returns `None` when the connection has ended.
    fn read_one(&self) -> io::Result<Option<Message>> {
        use rustix::io::Errno as System;
        let mut bytes = self.pool.take();
        loop {
            let len = match rustix::io::read(&*self.channel, &mut *bytes) {
                Ok(0) | Err(System::NODEV) => return Ok(None),
                Ok(len) => len,
                // The kernel took a request back, or a signal came.
                Err(System::NOENT | System::INTR | System::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            };
            bytes.note_touched(len);
            match Head::read(&bytes[..len]) {
                Some(head) if head.len as usize == len => {
                    let (channel, pool) = (Arc::clone(&self.channel), Arc::clone(&self.pool));
                    return Ok(Some(Message {
                        channel,
                        pool,
                        head,
                        bytes,
                        len,
                        is_answered: false,
                    }));
                }
                // The message has no request number that an answer could name.
                _ => tracing::error!(len, "a message of the kernel is cut off"),
            }
        }
    }
}

impl Notifier {
    /// Makes the kernel drop pages of an inode, or invalidate its attributes. Waits until the
    /// kernel has done so.
    pub(crate) fn inval_inode(&self, node: u64, offset: i64, len: i64) -> io::Result<()> {
        self.send(&buttress_protocol::inval_inode(node, offset, len))
    }

    /// Makes the kernel forget a name. Waits until the kernel has done so.
    pub(crate) fn inval_entry(&self, directory: u64, name: &[u8]) -> io::Result<()> {
        self.send(&buttress_protocol::inval_entry(directory, name))
    }

    /// Makes the kernel forget nodes that no program uses. Waits until the kernel has done so.
    pub(crate) fn prune(&self, nodes: &[u64]) -> io::Result<()> {
        self.send(&buttress_protocol::prune(nodes))
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        rustix::io::retry_on_intr(|| rustix::io::write(&*self.0, message))?;
        Ok(())
    }
}

impl Message {
    /// The bytes after the header.
    fn rest(&self) -> &[u8] {
        &self.bytes[IN_LEN..self.len]
    }

    fn send(&mut self, answer: Result<usize, Errno>) {
        self.is_answered = true;
        let len = OUT_LEN + answer.unwrap_or(0);
        OutHead::new(self.head.unique, answer).write(&mut self.bytes);
        let (channel, message) = (&*self.channel, &self.bytes[..len]);
        let mut sent = Ok(0);
        pool::send(|| sent = rustix::io::retry_on_intr(|| rustix::io::write(channel, message)));
        if let Err(error) = sent {
            // The kernel has taken the request back, or the mount is gone.
            tracing::debug!(%error, unique = self.head.unique, "an answer was not taken");
        }
    }
}

impl Exchange for Message {
    /// Needs no permission: each request has memory of its own.
    type HoldPermit = ();

    fn head(&self) -> Head {
        self.head
    }

    fn parts(&self) -> Parts<'_> {
        Parts::of_message(self.head.opcode, self.rest())
    }

    fn answer_buffer(&mut self) -> &mut [u8] {
        let end = self.bytes.len().min(OUT_LEN + PAYLOAD_LEN);
        &mut self.bytes[OUT_LEN..end]
    }

    fn answer(mut self, answer: Result<usize, Errno>) {
        self.bytes.note_touched(OUT_LEN + answer.unwrap_or(0));
        self.send(answer);
    }

    fn dismiss(mut self) {
        self.is_answered = true;
    }

    fn hold_permit(&self) -> Option<()> {
        Some(())
    }

    /// Puts the request into a small buffer. Many requests may wait, and a buffer that was used for
    /// data has a MiB.
    fn set_aside(mut self) -> Self {
        let mut small = Buffer::new(OUT_LEN + IOCTL_LEN);
        self.len = self.len.min(small.len());
        small.note_touched(self.len);
        small[..self.len].copy_from_slice(&self.bytes[..self.len]);
        self.pool.put(std::mem::replace(&mut self.bytes, small));
        self
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if !self.is_answered {
            self.send(Err(Errno::EIO));
        }
        self.pool.put(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn request(opcode: u32, unique: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((40 + body.len() as u32).to_ne_bytes());
        bytes.extend(opcode.to_ne_bytes());
        bytes.extend(unique.to_ne_bytes());
        bytes.resize(40, 0);
        bytes.extend(body);
        bytes
    }

    const TERMS: Terms = Terms {
        wanted: InitFlags::ASYNC_READ,
        max_write: PAYLOAD_LEN as u32,
        max_readahead: 0,
        max_background: 1,
        congestion_threshold: 1,
    };

    /// A command that was set aside keeps its bytes, and gives its large buffer back.
    #[test]
    fn commands_wait_in_small_buffers() {
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let pool = Arc::new(MessagePool::new(FIXED_LEN + PAYLOAD_LEN));
        let device = Device { channel: Arc::new(near.into()), pool: Arc::clone(&pool) };
        let body: Vec<u8> = (0..4096_u32).map(|at| at as u8).collect();
        far.write_all(&request(opcode::IOCTL, 7, &body)).expect("it is sent");
        let message = device.read_one().expect("a read").expect("a request");
        let mut message = message.set_aside();
        assert_eq!(message.rest(), body);
        assert_eq!(pool.count(), 1);
        assert!(message.bytes.len() < 1 << 15 && message.answer_buffer().len() >= 1 << 14);
        message.answer(Ok(0));
        assert_eq!(pool.count(), 1, "the small buffer is not kept");
        let mut answer = [0; OUT_LEN];
        far.read_exact(&mut answer).expect("an answer");
    }

    /// A request that is dropped is answered with `EIO`. A request that is dismissed is not
    /// answered.
    #[test]
    fn dropped_requests_are_answered() {
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let hello: Vec<u8> = [7_u32, 40, 0, 1].iter().flat_map(|n| n.to_ne_bytes()).collect();
        far.write_all(&request(opcode::INIT, 1, &hello)).expect("it is sent");
        let (device, agreed) = Device::negotiate(near.into(), &TERMS).expect("a greeting");
        assert_eq!(agreed, InitFlags::ASYNC_READ);
        let mut answer = [0; OUT_LEN + 64];
        far.read_exact(&mut answer).expect("an answer");
        for unique in [2, 3] {
            far.write_all(&request(opcode::STATFS, unique, &[])).expect("it is sent");
            let message = device.read_one().expect("a read").expect("a request");
            assert_eq!(message.head().unique, unique);
            if unique == 2 { message.dismiss() } else { drop(message) }
        }
        far.read_exact(&mut answer[..OUT_LEN]).expect("an answer");
        let head = [16_u32, (-5_i32).cast_unsigned(), 3, 0];
        assert_eq!(
            answer[..OUT_LEN],
            head.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<_>>()
        );
    }
}
