//! A client of a store that repeats failed requests, up to a limit of time.
//!
//! # Invariants
//!
//! - **A1** Only requests that may be repeated are repeated. A creation is sent once per call.
//! - **A2** Pauses grow and have random lengths, so that many clients do not repeat their requests
//!   at the same time.
//! - **A3** Once a client is ended, no request of it is repeated for longer than
//!   [`ENDED_TIMEOUT`]. So no thread of a closing volume waits long for a store that is away.
//! - **A4** A thread that may abandon its wait (`base::interrupt::I3`) gives up when its work is
//!   not wanted any more. No other thread gets its error: each thread that waits for the same line
//!   asks for itself.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use buttress_base::activity::{self, Cause};
use buttress_base::{Rank, Ranked, Rng, clock, interrupt, thread};
use bytes::Bytes;

use crate::error::Error;
use buttress_store::{Meta, Store, StoreError};

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a store may fail before a message reports it.
const SILENCE: Duration = Duration::from_secs(5);

/// The timeout of a client that is ended (A3).
const ENDED_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a pausing client checks whether it is ended.
const LOOK: Duration = Duration::from_millis(100);

/// How many requests of each kind were made, and how many bytes they carried.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Objects written, including creations.
    pub(crate) puts: AtomicU64,
    /// Reads of objects or parts.
    pub(crate) gets: AtomicU64,
    /// The number of lists.
    pub(crate) lists: AtomicU64,
    /// Deletions.
    pub(crate) deletes: AtomicU64,
    /// Requests that were made again.
    pub(crate) retries: AtomicU64,
    /// Bytes written.
    pub(crate) put_bytes: AtomicU64,
    /// Bytes read.
    pub(crate) got_bytes: AtomicU64,
}

/// A store that repeats failed requests until a timeout. Clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct RetryingStore {
    store: Arc<dyn Store>,
    timeout: Duration,
    counts: Arc<Counts>,
    chance: Arc<Ranked<Rng>>,
    is_ended: Arc<AtomicBool>,
    is_given_up: Arc<AtomicBool>,
    /// The last failure of the store.
    failure: Arc<Ranked<Option<(String, Instant)>>>,
}

impl RetryingStore {
    /// Creates a client that gives a failing store `timeout` to recover.
    pub(crate) fn new(store: Arc<dyn Store>, timeout: Duration, seed: u64) -> Self {
        let chance = Arc::new(Ranked::new(Rank::Leaf, Rng::new(seed)));
        let failure = Arc::new(Ranked::new(Rank::Leaf, None));
        let (counts, is_ended, is_given_up) = <_>::default();
        Self { store, timeout, counts, chance, is_ended, is_given_up, failure }
    }

    /// A copy of the client. The end of one of the two does not end the other one.
    pub(crate) fn apart(&self) -> Self {
        Self { is_ended: Arc::default(), is_given_up: Arc::default(), ..self.clone() }
    }

    /// Ends the client and its clones (A3).
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
    }

    fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Relaxed)
    }

    /// From now on no request of the client and its clones is repeated.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// The last failure of the store, and how long ago it was, in seconds.
    pub(crate) fn last_failure(&self) -> Option<(String, u64)> {
        let failure = self.failure.lock();
        failure.as_ref().map(|(why, then)| (why.clone(), clock::since(*then).as_secs()))
    }

    /// Notes a failure of the store.
    fn noted<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(StoreError::Failed(why)) = &answer {
            *self.failure.lock() = Some((why.clone(), clock::now()));
        }
        answer
    }

    /// The same client with another timeout.
    pub(crate) fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout: timeout.min(self.timeout), ..self.clone() }
    }

    /// Returns the counts of requests so far.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The name of the store.
    pub(crate) fn title(&self) -> String {
        self.store.title()
    }

    /// Makes one attempt at a creation (A1), and returns every result.
    pub(crate) fn create_once(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        self.counts.puts.fetch_add(1, Ordering::Relaxed);
        self.counts.put_bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        self.noted(self.store.create(name, body))
    }

    pub(crate) fn put(&self, name: &str, body: &Bytes) -> Result<(), Error> {
        self.again(name, || {
            self.counts.puts.fetch_add(1, Ordering::Relaxed);
            self.counts.put_bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
            self.store.put(name, body.clone())
        })
    }

    /// Reads an object, or returns `None` if it does not exist.
    pub(crate) fn get(&self, name: &str) -> Result<Option<Bytes>, Error> {
        found(self.again(name, || self.got(self.store.get(name))))
    }

    pub(crate) fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, Error> {
        let want = range.end - range.start;
        self.again(name, || self.got(whole(self.store.get_range(name, range.clone()), want)))
    }

    /// Reads an object and checks it. If the answer is damaged, repeats the request a few times.
    pub(crate) fn get_as<T>(
        &self,
        name: &str,
        check: impl Fn(&Bytes) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        checked(|| self.get(name)?.as_ref().map(&check).transpose())
    }

    /// Does the work of [`RetryingStore::get_as`] for a part of an object.
    pub(crate) fn range_as<T>(
        &self,
        name: &str,
        range: &Range<u64>,
        check: impl Fn(&Bytes) -> Result<T, Error>,
    ) -> Result<T, Error> {
        checked(|| check(&self.get_range(name, range.clone())?))
    }

    /// Reads several parts at once. Parts that fail are requested again one by one.
    pub(crate) fn get_many(&self, wants: &[(String, Range<u64>)]) -> Result<Vec<Bytes>, Error> {
        let _waiting = activity::wait(Cause::Store);
        let answers = self.store.get_many(wants);
        let mut all = Vec::with_capacity(wants.len());
        let mut answers = answers.into_iter();
        for (name, range) in wants {
            let failed = || Err(StoreError::Failed("no answer".to_owned()));
            let answer = answers.next().unwrap_or_else(failed);
            match self.got(whole(answer, range.end - range.start)) {
                Ok(bytes) => all.push(bytes),
                Err(_) => all.push(checked(|| self.get_range(name, range.clone()))?),
            }
        }
        Ok(all)
    }

    /// Works as [`RetryingStore::get_many`], but also calls `check` with the index and the bytes of
    /// each part.
    pub(crate) fn many_as<T>(
        &self,
        wants: &[(String, Range<u64>)],
        check: impl Fn(usize, &Bytes) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        if wants.is_empty() {
            return Ok(Vec::new());
        }
        let answers = self.get_many(wants)?.into_iter().enumerate();
        let each = |(index, bytes): (usize, Bytes)| match check(index, &bytes) {
            Err(Error::Damaged { .. }) => {
                let (name, range) = &wants[index];
                self.range_as(name, range, |bytes| check(index, bytes))
            }
            answer => answer,
        };
        answers.map(each).collect()
    }

    pub(crate) fn head(&self, name: &str) -> Result<Option<Meta>, Error> {
        found(self.again(name, || {
            self.counts.gets.fetch_add(1, Ordering::Relaxed);
            self.store.head(name)
        }))
    }

    pub(crate) fn list(&self, folder: &str) -> Result<Vec<Meta>, Error> {
        let listed = self.again(folder, || {
            self.counts.lists.fetch_add(1, Ordering::Relaxed);
            self.store.list(folder)
        });
        Ok(found(listed)?.unwrap_or_default())
    }

    pub(crate) fn delete(&self, name: &str) -> Result<(), Error> {
        self.again(name, || {
            self.counts.deletes.fetch_add(1, Ordering::Relaxed);
            self.store.delete(name)
        })
    }

    /// Pauses before another attempt, for a random time that grows with each attempt (A2).
    pub(crate) fn pause(&self, attempt: u32) {
        let most = PAUSE_MAX.min(PAUSE_MIN * 2u32.saturating_pow(attempt.min(10)));
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX).max(2);
        let drawn = micros / 2 + self.chance.lock().below(micros / 2);
        self.counts.retries.fetch_add(1, Ordering::Relaxed);
        let mut left = Duration::from_micros(drawn);
        while !left.is_zero() {
            let step = left.min(LOOK);
            thread::sleep(step);
            let is_over = self.is_ended() || self.is_given_up() || interrupt::is_abandoned();
            left = if is_over { Duration::ZERO } else { left - step };
        }
    }

    /// Returns the time that a failing store has to recover.
    pub(crate) fn timeout(&self) -> Duration {
        match (self.is_given_up(), self.is_ended()) {
            (true, _) => Duration::ZERO,
            (false, true) => self.timeout.min(ENDED_TIMEOUT),
            (false, false) => self.timeout,
        }
    }

    fn got(&self, answer: Result<Bytes, StoreError>) -> Result<Bytes, StoreError> {
        self.counts.gets.fetch_add(1, Ordering::Relaxed);
        let len = answer.as_ref().map_or(0, |bytes| bytes.len() as u64);
        self.counts.got_bytes.fetch_add(len, Ordering::Relaxed);
        answer
    }

    fn again<T>(
        &self,
        name: &str,
        request: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, Error> {
        let begun = clock::now();
        let _waiting = activity::wait(Cause::Store);
        let mut said = false;
        for attempt in 0.. {
            match self.noted(request()) {
                Err(StoreError::Failed(_)) if interrupt::is_abandoned() => {
                    return Err(Error::Abandoned { place: name.to_owned() });
                }
                Err(StoreError::Failed(why)) if clock::since(begun) < self.timeout() => {
                    if !said && clock::since(begun) >= SILENCE {
                        tracing::warn!(store = self.title(), name, why, "the store fails; waiting");
                        said = true;
                    }
                    self.pause(attempt);
                }
                answer => {
                    return answer.map_err(|source| match source {
                        StoreError::Damaged(why) => Error::Damaged { name: name.to_owned(), why },
                        source => Error::Store { name: name.to_owned(), source },
                    });
                }
            }
        }
        Err(Error::Store { name: name.to_owned(), source: StoreError::NotFound })
    }
}

/// Repeats a request a few times if the answer is damaged, since the network may have damaged it.
fn checked<T>(ask: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    const TRIES: u32 = 4;
    for _ in 1..TRIES {
        match ask() {
            Err(Error::Damaged { .. }) => {}
            answer => return answer,
        }
    }
    ask()
}

/// Refuses a part that is shorter than requested.
fn whole(answer: Result<Bytes, StoreError>, want: u64) -> Result<Bytes, StoreError> {
    let bytes = answer?;
    if bytes.len() as u64 == want {
        return Ok(bytes);
    }
    Err(StoreError::Failed(format!("{} bytes instead of {want}", bytes.len())))
}

fn found<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(Error::Store { source: StoreError::NotFound, .. }) => Ok(None),
        answer => answer.map(Some),
    }
}
