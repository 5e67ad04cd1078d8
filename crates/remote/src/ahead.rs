//! Reads ahead of sequential readers, by threads that no reader waits for.
//!
//! # Invariants
//!
//! - **A1** Only a sequential reader causes requests ahead of it: each of its last reads began
//!   where the read before ended, or nearby. A random reader causes none.
//! - **A2** At most [`Ahead::threads`] pieces are read ahead at the same time. Each has at most
//!   [`REQUESTS`] requests and [`PIECE_LINES`] lines. The memory of the pieces is a part of the
//!   budget of the cache in memory (`lines::R2`). Lines that were read ahead and are not used yet
//!   count in this budget, too.
//! - **A3** A request ahead that fails does not fail a read. The reader asks for the line itself.
//! - **A4** A line that is asked for already is waited for, and not asked for a second time. Each
//!   thread ends its own requests before it waits for requests of other threads, so no two threads
//!   wait for each other. Pages of the map are shared the same way (`map_cache::B3`).
//! - **A5** The pages of the map that a reader needs next are read a window before its data. They
//!   are work of the same threads, so they add no request to those at the same time.
//! - **A6** A caller may say what comes ([`Ahead::expect`]). That is read as a window is. Pieces
//!   that were said and do not fit into one window are left out.
//!
//! # Locks
//!
//! Takes [`Rank::Leaf`] for moments. A thread that waits for a signal gives the lock up meanwhile.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use buttress_base::activity::{self, Cause};
use buttress_base::sync::Condvar;
use buttress_base::{Rank, Ranked, interrupt};

use crate::lines::{Key, LINE, LINE_BYTES};
use crate::map::PAGE_SECTORS;
use crate::units::SECTOR;

/// The sectors of one piece that is read ahead: 1 MiB.
const PIECE: u64 = 256;
/// The most lines and requests of one piece. Most pieces lie in one object. Lines beyond these
/// bounds are left to the reader.
pub(crate) const PIECE_LINES: usize = 24;
pub(crate) const REQUESTS: usize = 4;
/// The memory of a piece that is being read: its lines, and the answers of the store.
const PIECE_BYTES: u64 = 2 * PIECE_LINES as u64 * LINE_BYTES as u64;
/// The part of the whole memory that pieces may take while they are read.
const MEMORY_PART: u64 = 8;

/// The most readers that are tracked at the same time.
const STREAMS: usize = 64;
/// A read belongs to a reader if it begins at most this many sectors before or after the end of the
/// reader's last read. Requests of one reader may overtake each other on their way. The first reads
/// of a reader have to begin exactly at that end, so that random reads nearby are not taken for a
/// sequential reader.
const SLACK: u64 = 64;
/// How many reads must have continued a reader's earlier reads before anything is read ahead of the
/// reader.
const HITS: u32 = 2;
/// With this many jobs for each thread in the queue, no page of the map is queued.
const QUEUE_PART: usize = 4;
/// The first window of a reader, in sectors, and the largest: two objects of 8 MiB, so that one is
/// under way while the other is read. All windows together take at most an eighth of the cache,
/// since lines that were read ahead must stay until they are used.
/// What [`Ahead::expect`] is told comes on top, and the queue alone bounds it.
const WINDOW_MIN: u64 = 8 * LINE as u64;
const WINDOW_MAX: u64 = (16 << 20) / SECTOR;
const WINDOW_PART: u64 = 8;
/// A reader without a read among this many last reads of the device has no share of the windows.
const RECENT: u64 = 64;

/// A reader that may be sequential.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The sector where its last read ended.
    next: u64,
    /// All sectors up to this one were asked for, or are about to be.
    ahead_to: u64,
    /// The same for pages of the map, as the number of the first page that was not.
    pages_to: u64,
    /// How many sectors are read ahead of the reader.
    window: u64,
    hits: u32,
    /// The number of its last read.
    at: u64,
}

/// What a thread reads at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// A range of sectors.
    Piece(Range<u64>),
    /// The page of the map with this number.
    Page(u64),
}

#[derive(Debug, Default)]
struct Inside {
    streams: Vec<Stream>,
    /// How many reads there were.
    reads: u64,
    queue: VecDeque<Job>,
    started: usize,
    idle: usize,
    is_closed: bool,
    /// Lines that some thread has asked for (A4).
    asked: BTreeSet<Key>,
}

/// The state of reading ahead for the readers of one device.
#[derive(Debug)]
pub(crate) struct Ahead {
    inside: Ranked<Inside>,
    /// Signals that a piece was queued, that lines have come, or that the device closes.
    signal: Condvar,
    threads: usize,
    /// The windows of all readers together, in sectors.
    windows: u64,
}

impl Ahead {
    /// For a device with `memory` bytes of memory for reads, `cache` of these bytes for lines. The
    /// device makes at most `in_flight` requests at once.
    pub(crate) fn new(memory: u64, cache: u64, in_flight: usize) -> Self {
        let fit = (memory / MEMORY_PART / PIECE_BYTES) as usize;
        let threads = match cache / PIECE_BYTES {
            0 | 1 => 0,
            _ => fit.clamp(1, 2 * in_flight.max(1)),
        };
        let windows = (cache / WINDOW_PART / SECTOR).clamp(WINDOW_MIN, WINDOW_MAX);
        let inside = Ranked::new(Rank::Leaf, Inside::default());
        Self { inside, signal: Condvar::new(), threads, windows }
    }

    /// The memory of all pieces that may be read at the same time, in bytes (A2).
    pub(crate) fn memory(&self) -> u64 {
        self.threads as u64 * PIECE_BYTES
    }

    /// Notes a read of `count` sectors of a device with `sectors`, and queues what to read ahead of
    /// its reader. Returns whether to start another thread for that.
    pub(crate) fn note(&self, first: u64, count: u64, sectors: u64) -> bool {
        let mut inside = self.inside.lock();
        let inside = &mut *inside;
        let Some(wanted) = inside.window_of(first, count, self.windows) else { return false };
        let end = wanted.end.min(sectors);
        // The queue has no more pieces than the threads can take up at once. The reader asks for
        // the other sectors itself, or a later read queues them.
        let at = inside.push(wanted.start..end, self.threads);
        if let Some(stream) = inside.streams.iter_mut().find(|s| s.ahead_to == wanted.end) {
            if at < end {
                stream.ahead_to = at;
            }
            let pages = stream.pages_to.max(wanted.start / PAGE_SECTORS)
                ..(wanted.end + self.windows).min(sectors).div_ceil(PAGE_SECTORS);
            // While no thread takes jobs, the queue stays as it is. A reader asks for its pages
            // itself.
            if self.threads > 0 && inside.queue.len() < QUEUE_PART * self.threads {
                stream.pages_to = stream.pages_to.max(pages.end);
                inside.push_pages(pages);
            }
        }
        self.signal.notify_all();
        self.starts(inside, 1) > 0
    }

    /// Queues ranges of sectors that a reader will ask for next, in their order (A6). Returns how
    /// many threads to start for them.
    pub(crate) fn expect(&self, ranges: impl Iterator<Item = Range<u64>>, sectors: u64) -> usize {
        let mut inside = self.inside.lock();
        let inside = &mut *inside;
        let most = (self.windows / PIECE).max(1) as usize;
        for range in ranges {
            let range = range.start..range.end.min(sectors);
            if self.threads == 0 || range.is_empty() {
                continue;
            }
            inside.push(range.clone(), most);
        }
        self.signal.notify_all();
        self.starts(inside, self.threads)
    }

    /// How many sectors ahead of one reader [`Ahead::expect`] is of use, with the readers of now.
    pub(crate) fn window(&self) -> u64 {
        if self.threads == 0 { 0 } else { self.inside.lock().share(self.windows) }
    }

    /// How many threads to start for the queue, at most `most`.
    fn starts(&self, inside: &mut Inside, most: usize) -> usize {
        let lacking = inside.queue.len().saturating_sub(inside.idle);
        let count = lacking.min(self.threads - inside.started).min(most);
        let count = if inside.is_closed { 0 } else { count };
        inside.started += count;
        count
    }

    /// Waits for the next job. `None` at the end.
    pub(crate) fn next(&self) -> Option<Job> {
        let mut inside = self.inside.lock();
        loop {
            if inside.is_closed {
                return None;
            }
            if let Some(job) = inside.queue.pop_front() {
                return Some(job);
            }
            inside.idle += 1;
            inside.wait(&self.signal);
            inside.idle -= 1;
        }
    }

    /// Ends the threads.
    pub(crate) fn close(&self) {
        let mut inside = self.inside.lock();
        inside.is_closed = true;
        inside.queue.clear();
        drop(inside);
        self.signal.notify_all();
    }

    /// Takes the keys of `wanted` that no other thread has asked for. The caller asks for these
    /// lines, and then drops the first result. The second result has the other keys, for
    /// [`Ahead::wait`].
    pub(crate) fn take(&self, wanted: BTreeSet<Key>) -> (RequestedLines<'_>, BTreeSet<Key>) {
        let mut inside = self.inside.lock();
        let (mine, theirs) = wanted.into_iter().partition(|key| inside.asked.insert(*key));
        (RequestedLines { ahead: self, keys: mine }, theirs)
    }

    /// Waits until no thread asks for a line any more. Afterwards the cache may still lack the
    /// line: its request may have failed, or the cache may be too small. Returns `false` if the
    /// caller shall give up its wait.
    pub(crate) fn wait(&self, key: Key) -> bool {
        let _waiting = activity::wait(Cause::Store);
        loop {
            let mut inside = self.inside.lock();
            if !inside.asked.contains(&key) {
                return true;
            }
            let may_abandon = inside.wait_a_while(&self.signal);
            drop(inside);
            if may_abandon && interrupt::is_abandoned() {
                return false;
            }
        }
    }
}

impl Inside {
    /// Queues the pieces of a range until the queue has `most` jobs. Returns where it stopped.
    fn push(&mut self, range: Range<u64>, most: usize) -> u64 {
        let mut at = range.start;
        while at < range.end && self.queue.len() < most {
            let to = (at - at % PIECE + PIECE).min(range.end);
            self.queue.push_back(Job::Piece(at..to));
            at = to;
        }
        at
    }

    /// Queues pages of the map before all pieces (A5).
    fn push_pages(&mut self, pages: Range<u64>) {
        for page in pages.rev() {
            self.queue.push_front(Job::Page(page));
        }
    }

    /// The window that each active reader may have at most, in sectors.
    fn share(&self, windows: u64) -> u64 {
        let is_active = |s: &&Stream| s.hits >= HITS && self.reads - s.at <= RECENT;
        let active = self.streams.iter().filter(is_active).count() as u64;
        (windows / active.max(1)).max(WINDOW_MIN)
    }

    /// Finds the reader of a read, and the sectors to read ahead of it, if any (A1).
    fn window_of(&mut self, first: u64, count: u64, windows: u64) -> Option<Range<u64>> {
        self.reads += 1;
        let (now, end) = (self.reads, first + count);
        let is_near = |s: &&mut Stream| {
            let slack = if s.hits < HITS { 0 } else { SLACK };
            first + slack >= s.next && first <= s.next + slack
        };
        let Some(stream) = self.streams.iter_mut().find(is_near) else {
            let new = Stream { next: end, ahead_to: 0, pages_to: 0, window: 0, hits: 0, at: now };
            let is_full = self.streams.len() >= STREAMS;
            match self.streams.iter_mut().min_by_key(|stream| stream.at) {
                Some(oldest) if is_full => *oldest = new,
                _ => self.streams.push(new),
            }
            return None;
        };
        stream.at = now;
        if end <= stream.next {
            return None;
        }
        stream.next = end;
        stream.hits = stream.hits.saturating_add(1);
        if stream.hits < HITS {
            return None;
        }
        let left = stream.ahead_to.saturating_sub(end);
        // A window is filled up by whole pieces, so requests are under way all the time. A small
        // window is filled up when half of it was read.
        if stream.window > 0 && left + PIECE.min(stream.window / 2) > stream.window {
            return None;
        }
        let (number, window) = (stream.next, stream.window);
        let window = (window * 2).clamp(WINDOW_MIN, self.share(windows));
        let stream = self.streams.iter_mut().find(|s| s.next == number && s.at == now)?;
        stream.window = window;
        let from = stream.ahead_to.max(end);
        // The last piece of a large window is whole, too.
        let cut = if window < 2 * PIECE { 0 } else { (end + window) % PIECE };
        stream.ahead_to = from.max(end + window - cut);
        (from < stream.ahead_to).then_some(from..stream.ahead_to)
    }
}

/// Lines that this thread asks for (A4).
#[derive(Debug)]
pub(crate) struct RequestedLines<'a> {
    ahead: &'a Ahead,
    pub(crate) keys: BTreeSet<Key>,
}

impl Drop for RequestedLines<'_> {
    fn drop(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        let mut inside = self.ahead.inside.lock();
        for key in &self.keys {
            inside.asked.remove(key);
        }
        drop(inside);
        self.ahead.signal.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::ObjectNumber;

    const SECTORS: u64 = 1 << 30;

    fn queued(ahead: &Ahead) -> Vec<Range<u64>> {
        let jobs: Vec<Job> = ahead.inside.lock().queue.drain(..).collect();
        let pieces = jobs.into_iter().filter_map(|job| match job {
            Job::Piece(piece) => Some(piece),
            Job::Page(_) => None,
        });
        pieces.collect()
    }

    /// A1: a sequential reader has more and more read ahead of it, without a gap and without a
    /// sector twice. Its reads may overtake each other.
    #[test]
    fn a_sequential_reader_has_a_window() {
        let ahead = Ahead::new(512 << 20, 192 << 20, 4);
        let (mut to, mut most) = (None, 0);
        for number in [0, 1, 2, 4, 3, 5, 6, 7, 9, 8].into_iter().chain(10..400_u64) {
            ahead.note(number * 32, 32, SECTORS);
            for piece in queued(&ahead) {
                assert!(to.is_none_or(|to| to == piece.start), "{to:?} {piece:?}");
                assert!(piece.end - piece.start <= PIECE);
                to = Some(piece.end);
            }
            most = most.max(to.unwrap_or(0).saturating_sub(number * 32 + 32));
        }
        assert!((WINDOW_MAX - PIECE..=WINDOW_MAX).contains(&most), "{most}");
    }

    /// A1: random reads, repeated reads and the first reads of a reader have nothing read ahead.
    #[test]
    fn a_random_reader_has_none() {
        let ahead = Ahead::new(256 << 20, 96 << 20, 4);
        let mut rng = buttress_base::Rng::new(7);
        for _ in 0..1000 {
            ahead.note(rng.below(SECTORS - 64), 1, SECTORS);
        }
        for _ in 0..1000 {
            ahead.note(rng.below(10_000), 1, SECTORS);
        }
        for _ in 0..100 {
            ahead.note(5000, 16, SECTORS);
        }
        ahead.note(5016, 16, SECTORS);
        assert!(queued(&ahead).is_empty());
    }

    /// A2: the queue and the windows are bounded, also with many readers and little memory.
    #[test]
    fn windows_share_the_memory() {
        let ahead = Ahead::new(64 << 20, 24 << 20, 4);
        assert_eq!(ahead.threads, 2);
        assert!(ahead.memory() <= 8 << 20);
        let mut to = [0; 32];
        for number in 0..100 {
            for reader in 0..32 {
                let first = reader * 1_000_000 + number * 32;
                ahead.note(first, 32, SECTORS);
                let pieces = queued(&ahead);
                assert!(pieces.len() <= ahead.threads);
                for piece in pieces {
                    to[(piece.start / 1_000_000) as usize] = piece.end - first;
                }
            }
        }
        let all: u64 = to.iter().sum();
        assert!(all * SECTOR <= 24 << 20, "{all}");
        let small = Ahead::new(1 << 20, 1 << 20, 4);
        assert_eq!((small.threads, Ahead::new(16 << 20, 8 << 20, 4).threads), (0, 1));
    }

    /// A2: pages of the map are not queued where no thread takes them.
    #[test]
    fn pages_are_bounded() {
        for (ahead, most) in [
            (Ahead::new(1 << 20, 1 << 20, 4), 0),
            (Ahead::new(64 << 20, 24 << 20, 4), 8 * QUEUE_PART),
        ] {
            for reader in 0..2000 {
                for number in 0..4 {
                    ahead.note(reader * 400_000 + number * 32, 32, SECTORS);
                }
            }
            let jobs = ahead.inside.lock().queue.len();
            assert!(jobs <= most, "{jobs} jobs of {} threads", ahead.threads);
        }
    }

    /// A4: of two threads that want a line, one asks for it. The other one waits.
    #[test]
    fn one_thread_asks_for_a_line() {
        let ahead = Ahead::new(64 << 20, 24 << 20, 4);
        let key = |line| (ObjectNumber(1), line);
        let (first, others) = ahead.take([key(1), key(2)].into());
        assert_eq!((first.keys.len(), others.len()), (2, 0));
        let (second, others) = ahead.take([key(2), key(3)].into());
        assert_eq!((second.keys.first(), others.first()), (Some(&key(3)), Some(&key(2))));
        drop(second);
        std::thread::scope(|scope| {
            scope.spawn(|| ahead.wait(key(2)));
            drop(first);
        });
        assert!(ahead.inside.lock().asked.is_empty());
    }
}
