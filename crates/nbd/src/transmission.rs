//! Requests and answers, on one connection, several at a time.
//!
//! # Place
//!
//! A transmission works on any pair of streams. All threads of a connection run the same loop. The
//! thread that has the input reads a request with its payload. It then gives the input to the next
//! thread and serves the request itself, without a handover. A thread is added only while all
//! existing threads are busy.
//!
//! # Invariants
//!
//! - **X1** The number of requests in flight is at most the connection's number of threads. Each
//!   request holds at most [`PIECE`] bytes: a longer request is moved piece by piece.
//! - **X2** Either a whole answer is sent, with no other answer in between, or the connection ends.
//! - **X3** When the connection ends, requests that were read whole are still served.
//!
//! # Locks
//!
//! The input's and the output's mutexes are held across I/O, which is slow and may wait for the
//! client. These mutexes have no rank. A thread never holds both: it gives up the input before it
//! answers.
//!
//! # Failure
//!
//! The first reason to end is kept. When reading fails, the other threads finish their requests
//! (X3). When sending fails, `cut` also wakes the thread that waits for the next request.

use std::io::{self, BufReader, ErrorKind, IoSlice, Read, Write};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Scope;

use buttress_base::AlignedBuf;
use buttress_base::sync::Mutex;
use buttress_block::{Content, Space};

use crate::errno;
use crate::error::{Disconnect, Fault};
use crate::export::Export;
use crate::request::{Cookie, REQUEST_LEN, Request};
use crate::terms::{Terms, skip};
use crate::wire::{self, chunk, command, command_flag as flag};

/// The most bytes of a request that a thread holds.
pub const PIECE: usize = 1 << 20;
/// Shorter runs of zeroes are sent as data, since a separate chunk costs more.
const HOLE_MIN: u64 = 32 << 10;
/// The most runs in one answer. For the rest of the range, the client asks again.
const STATUS_MAX: usize = 512;
/// The buffer size for small requests that arrive together.
const INPUT_BUFFER: usize = 32 << 10;

/// One connection, after its handshake.
#[derive(Debug)]
pub struct Transmission<'a, R, W> {
    /// Unranked: a thread holds it while it waits for the client.
    input: Mutex<BufReader<R>>,
    /// Unranked: a thread holds it while it writes to the client.
    output: Mutex<W>,
    export: &'a Export,
    terms: Terms,
    threads: Threads,
    /// The reason of the end.
    end: OnceLock<Disconnect>,
    /// The server is stopping.
    stopping: &'a AtomicBool,
}

/// A request that was read whole.
struct Work {
    request: Request,
    /// The request's range, or the reason of its refusal. For a write, the range is only the last
    /// part. That part is not written yet, and its bytes are in the buffer.
    range: Result<Range<u64>, Fault>,
}

#[derive(Debug)]
struct Threads {
    max: usize,
    alive: AtomicUsize,
    /// The number of threads that want the input.
    waiting: AtomicUsize,
}

impl<'a, R: Read + Send, W: Write + Send> Transmission<'a, R, W> {
    /// Prepares to serve with at least one and at most `threads` threads, until `stopping` is set.
    pub fn new(
        (input, output): (R, W),
        export: &'a Export,
        terms: Terms,
        threads: usize,
        stopping: &'a AtomicBool,
    ) -> Self {
        let alive = AtomicUsize::new(1);
        let threads = Threads { max: threads.max(1), alive, waiting: AtomicUsize::new(0) };
        Self {
            input: Mutex::new(BufReader::with_capacity(INPUT_BUFFER, input)),
            output: Mutex::new(output),
            export,
            terms,
            threads,
            end: OnceLock::new(),
            stopping,
        }
    }

    /// Serves until the client is done, the server stops, or a failure ends the connection. `cut`
    /// is called when sending fails, and has to end reading too.
    pub fn serve(self, cut: &(dyn Fn() + Sync)) -> Disconnect {
        std::thread::scope(|scope| self.work(scope, cut));
        self.end.into_inner().unwrap_or(Disconnect::Done)
    }

    /// The loop of one thread.
    fn work<'s>(&'s self, scope: &'s Scope<'s, '_>, cut: &'s (dyn Fn() + Sync)) {
        let _guard = EndOnPanic { end: &self.end, cut };
        let mut buffer = Buffer::default();
        while self.end.get().is_none() {
            self.threads.waiting.fetch_add(1, Ordering::Relaxed);
            let mut input = self.input.lock();
            self.threads.waiting.fetch_sub(1, Ordering::Relaxed);
            if self.end.get().is_some() {
                return;
            }
            let work = match self.take(&mut input, &mut buffer) {
                Ok(work) => work,
                Err(why) => {
                    // Set the reason before the next thread gets the input and waits in vain.
                    let _ = self.end.set(why);
                    return;
                }
            };
            self.relieve(scope, cut);
            drop(input);
            if let Err(why) = self.serve_one(work, &mut buffer) {
                let _ = self.end.set(why);
                cut();
            }
        }
    }

    /// Adds a thread if no other thread would take the input.
    fn relieve<'s>(&'s self, scope: &'s Scope<'s, '_>, cut: &'s (dyn Fn() + Sync)) {
        let Threads { max, alive, waiting } = &self.threads;
        if waiting.load(Ordering::Relaxed) > 0 || alive.load(Ordering::Relaxed) >= *max {
            return;
        }
        // Only the thread with the input runs this, so no two threads add a thread at once.
        alive.fetch_add(1, Ordering::Relaxed);
        let thread = std::thread::Builder::new().name("nbd request".to_owned());
        if thread.spawn_scoped(scope, move || self.work(scope, cut)).is_err() {
            // The system has no more threads; the existing threads are enough.
            alive.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reads one request with its payload.
    fn take(&self, input: &mut BufReader<R>, buffer: &mut Buffer) -> Result<Work, Disconnect> {
        let request = Request::parse(&self.next_header(input)?)?;
        if request.command == command::DISCONNECT {
            return Err(Disconnect::Done);
        }
        self.export.count_request();
        let range = match request.check(self.export, self.terms) {
            Ok(range) if request.command == command::WRITE => self.receive(input, range, buffer)?,
            Err(fault) if request.command == command::WRITE => {
                skip(input, u64::from(request.len))?;
                Err(fault)
            }
            checked => checked,
        };
        Ok(Work { request, range })
    }

    /// Serves a request, and answers.
    fn serve_one(&self, work: Work, buffer: &mut Buffer) -> Result<(), Disconnect> {
        let Work { request, range } = work;
        let range = match range {
            Ok(range) => range,
            Err(fault) => return self.answer(&request, Err(fault)),
        };
        match request.command {
            command::READ => self.read(&request, range, buffer),
            command::BLOCK_STATUS => self.block_status(&request, range),
            command::WRITE => {
                let last = buffer.filled(range.end - range.start);
                let written = self.export.write(range.start, last);
                self.answer(&request, self.settle(&request, written))
            }
            command::WRITE_ZEROES => {
                let keep = request.flags & flag::NO_HOLE != 0;
                let space = if keep { Space::Keep } else { Space::Free };
                let (start, len) = (range.start, range.end - range.start);
                let zeroed = self.export.write_zeroes(start, len, space);
                self.answer(&request, self.settle(&request, zeroed))
            }
            command::TRIM => {
                let trimmed = self.export.trim(range.start, range.end - range.start);
                self.answer(&request, self.settle(&request, trimmed))
            }
            command::FLUSH => self.answer(&request, self.export.flush()),
            // `Request::check` refuses all other commands.
            _ => self.answer(&request, Err(Fault::Command)),
        }
    }

    /// Waits for a request. Between two requests, the client may be silent for any time.
    fn next_header(&self, input: &mut BufReader<R>) -> Result<[u8; REQUEST_LEN], Disconnect> {
        let mut header = [0; REQUEST_LEN];
        let mut filled = 0;
        while filled < header.len() {
            if filled == 0 && self.stopping.load(Ordering::Acquire) {
                return Err(Disconnect::Stopping);
            }
            match input.read(&mut header[filled..]) {
                Ok(0) if filled == 0 => return Err(Disconnect::Done),
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The stream's time limit is for clients that stop within a request.
                Err(error) if filled == 0 && is_timeout(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(header)
    }

    /// Receives the payload of a write, and writes all of it except the last piece. Returns the
    /// range of that piece, which is in the buffer. After a failed piece the rest of the payload is
    /// received and dropped.
    fn receive(
        &self,
        input: &mut BufReader<R>,
        range: Range<u64>,
        buffer: &mut Buffer,
    ) -> Result<Result<Range<u64>, Fault>, Disconnect> {
        let mut at = range.start;
        loop {
            let piece = (range.end - at).min(PIECE as u64);
            input.read_exact(buffer.room(piece))?;
            if at + piece == range.end {
                return Ok(Ok(at..range.end));
            }
            if let Err(fault) = self.export.write(at, buffer.filled(piece)) {
                skip(input, range.end - at - piece)?;
                return Ok(Err(fault));
            }
            at += piece;
        }
    }

    /// Makes a change durable, if the request asked for it.
    fn settle(&self, request: &Request, changed: Result<(), Fault>) -> Result<(), Fault> {
        changed?;
        if request.is_durable() { self.export.flush() } else { Ok(()) }
    }

    fn read(
        &self,
        request: &Request,
        range: Range<u64>,
        buffer: &mut Buffer,
    ) -> Result<(), Disconnect> {
        self.export.count_read(range.end - range.start);
        let one_piece = request.flags & flag::DF != 0;
        if one_piece && range.end - range.start > PIECE as u64 {
            return self.answer(request, Err(Fault::OnePiece));
        }
        if !self.terms.structured {
            return self.read_simple(request, range, buffer);
        }
        if range.is_empty() {
            return self.send(&[&chunk_header(request.cookie, chunk::DONE, chunk::NONE, 0)]);
        }
        let mut at = range.start;
        while at < range.end {
            let left = range.end - at;
            let (content, len) = match self.next_run(at, left, one_piece) {
                Ok(run) => run,
                Err(fault) => return self.answer(request, Err(fault)),
            };
            let done = if len == left { chunk::DONE } else { 0 };
            if content == Content::Hole {
                let header = chunk_header(request.cookie, done, chunk::OFFSET_HOLE, 12);
                // The length of a read fits the protocol's 32 bits.
                self.send(&[&header, &at.to_be_bytes(), &(len as u32).to_be_bytes()])?;
            } else {
                if let Err(fault) = self.export.read(at, buffer.room(len)) {
                    return self.answer(request, Err(fault));
                }
                let data_len = len as u32 + 8;
                let header = chunk_header(request.cookie, done, chunk::OFFSET_DATA, data_len);
                self.send(&[&header, &at.to_be_bytes(), buffer.filled(len)])?;
            }
            at += len;
        }
        Ok(())
    }

    /// The next part of a read: a hole, or at most one piece of data.
    fn next_run(&self, at: u64, left: u64, one_piece: bool) -> Result<(Content, u64), Fault> {
        let piece = left.min(PIECE as u64);
        if one_piece || left < HOLE_MIN {
            return Ok((Content::Data, piece));
        }
        let extent = self.export.extent_at(at, left)?;
        Ok(match extent.content {
            Content::Hole if extent.len >= HOLE_MIN => (Content::Hole, extent.len.min(left)),
            // Short runs of either kind are joined, so that there are few chunks.
            Content::Hole | Content::Data => (Content::Data, piece.min(extent.len.max(HOLE_MIN))),
        })
    }

    /// Serves a read without structured replies: the answer reports success before its bytes.
    fn read_simple(
        &self,
        request: &Request,
        range: Range<u64>,
        buffer: &mut Buffer,
    ) -> Result<(), Disconnect> {
        let first = (range.end - range.start).min(PIECE as u64);
        if let Err(fault) = self.export.read(range.start, buffer.room(first)) {
            return self.answer(request, Err(fault));
        }
        let header = simple_header(request.cookie, 0);
        let mut output = self.output.lock();
        write_all(&mut *output, &[&header, buffer.filled(first)])?;
        let mut at = range.start + first;
        while at < range.end {
            let piece = (range.end - at).min(PIECE as u64);
            match self.export.read(at, buffer.room(piece)) {
                Ok(()) => {}
                // X2: a part of the answer is sent already, so the protocol has no other way to
                // report the error.
                Err(Fault::Device(error)) => return Err(Disconnect::Torn(Box::new(error))),
                Err(_) => return Err(Disconnect::Panicked),
            }
            write_all(&mut *output, &[buffer.filled(piece)])?;
            at += piece;
        }
        Ok(())
    }

    fn block_status(&self, request: &Request, range: Range<u64>) -> Result<(), Disconnect> {
        let max = if request.flags & flag::REQ_ONE != 0 { 1 } else { STATUS_MAX };
        let mut runs: Vec<(Content, u64)> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let extent = match self.export.extent_at(at, range.end - at) {
                // A device must not return an extent of length zero. If it does, the rest is
                // reported as data, which is always a correct answer.
                Ok(extent) if extent.len == 0 => (Content::Data, range.end - at),
                Ok(extent) => (extent.content, extent.len.min(range.end - at)),
                Err(fault) => return self.answer(request, Err(fault)),
            };
            at += extent.1;
            let is_full = runs.len() == max;
            match runs.last_mut() {
                Some(last) if last.0 == extent.0 => last.1 += extent.1,
                _ if is_full => break,
                _ => runs.push(extent),
            }
        }
        let mut data = wire::ALLOCATION_ID.to_be_bytes().to_vec();
        for (content, len) in runs {
            let state = match content {
                Content::Data => 0,
                Content::Hole => wire::STATE_HOLE | wire::STATE_ZERO,
            };
            // All runs together are no longer than the request, so each length fits 32 bits.
            data.extend_from_slice(&(len as u32).to_be_bytes());
            data.extend_from_slice(&u32::to_be_bytes(state));
        }
        let (cookie, len) = (request.cookie, data.len() as u32);
        self.send(&[&chunk_header(cookie, chunk::DONE, chunk::BLOCK_STATUS, len), &data])
    }

    /// Sends the whole answer to a request without data, or the end of a failed read.
    fn answer(&self, request: &Request, result: Result<(), Fault>) -> Result<(), Disconnect> {
        let Err(fault) = result else {
            return self.send(&[&simple_header(request.cookie, 0)]);
        };
        self.export.count_failed();
        log(request, &fault);
        let number = errno::from_fault(&fault) as u32;
        if !self.terms.structured {
            return self.send(&[&simple_header(request.cookie, number)]);
        }
        // The causes name paths and devices of this machine, so the causes only go to the log of
        // this machine.
        let text = fault.to_string();
        let len = 6 + text.len() as u32;
        let header = chunk_header(request.cookie, chunk::DONE, chunk::ERROR, len);
        let text_len = (text.len() as u16).to_be_bytes();
        self.send(&[&header, &number.to_be_bytes(), &text_len, text.as_bytes()])
    }

    fn send(&self, parts: &[&[u8]]) -> Result<(), Disconnect> {
        Ok(write_all(&mut *self.output.lock(), parts)?)
    }
}

/// The buffer of one thread, as large as its longest piece so far.
#[derive(Default)]
struct Buffer(AlignedBuf);

impl Buffer {
    /// Room for `len` bytes, at most [`PIECE`] (X1).
    fn room(&mut self, len: u64) -> &mut [u8] {
        let len = len as usize;
        assert!(len <= PIECE, "X1: {len}");
        if self.0.len() < len {
            self.0 = AlignedBuf::zeroed(len.next_power_of_two().max(AlignedBuf::ALIGN));
        }
        &mut self.0[..len]
    }

    /// The first `len` bytes, which the caller has filled.
    fn filled(&self, len: u64) -> &[u8] {
        &self.0[..len as usize]
    }
}

/// A request that panicked gets no answer; the end of the connection tells the client.
struct EndOnPanic<'a> {
    end: &'a OnceLock<Disconnect>,
    cut: &'a (dyn Fn() + Sync),
}

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.end.set(Disconnect::Panicked);
            (self.cut)();
        }
    }
}

fn simple_header(cookie: Cookie, error: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
    header[4..8].copy_from_slice(&error.to_be_bytes());
    header[8..].copy_from_slice(&cookie.0.to_be_bytes());
    header
}

fn chunk_header(cookie: Cookie, flags: u16, kind: u16, len: u32) -> [u8; 20] {
    let mut header = [0; 20];
    header[..4].copy_from_slice(&wire::CHUNK_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.0.to_be_bytes());
    header[16..].copy_from_slice(&len.to_be_bytes());
    header
}

/// Writes parts as if they were one, without copying them together.
fn write_all(output: &mut impl Write, parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = slices.as_mut_slice();
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match output.write_vectored(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// A client gets a number and a few words. This function logs the details for the operator.
fn log(request: &Request, fault: &Fault) {
    let Request { command, offset, len, .. } = request;
    match fault {
        Fault::Device(error) => {
            tracing::error!(command, offset, len, %error, cause = ?error, "a request failed");
        }
        Fault::Flush(error) => tracing::error!(%error, "a flush failed"),
        _ => tracing::debug!(command, offset, len, %fault, "a request was refused"),
    }
}
