//! A store in memory for tests. A seed decides which requests fail.
//!
//! # Invariants
//!
//! - **U1** A request that succeeded has its effect, and a refused request has none. A failed
//!   request may have its effect or not: the seed decides.
//! - **U2** Of several creations of one name only the first succeeds, unless the store is
//!   dishonest.

use std::collections::BTreeMap;
use std::ops::Range;

use buttress_base::{Rank, Ranked, Rng};
use bytes::Bytes;

use crate::{Meta, Store, StoreError};

/// The probabilities of faults, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// A request fails and has no effect: 503, or no connection.
    pub refused: u64,
    /// A write has its effect, and its answer is lost.
    pub lost: u64,
    /// A read returns one wrong byte.
    pub wrong: u64,
    /// A read returns fewer bytes than requested.
    pub short: u64,
    /// A list lacks the newest object.
    pub stale: u64,
    /// Creations succeed although the object exists.
    pub dishonest: bool,
}

/// One change of the store, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An object was written.
    Put(String, Bytes),
    /// An object was deleted.
    Delete(String),
}

#[derive(Debug, Default)]
struct Inside {
    objects: BTreeMap<String, (Bytes, u64)>,
    changes: Vec<Change>,
    /// The store's own clock, in milliseconds: it moves with each request.
    now_ms: u64,
    weather: Weather,
    /// The number of writes until the store fails for ever.
    writes_left: Option<u64>,
}

/// A store in memory.
#[derive(Debug)]
pub struct SimStore {
    inside: Ranked<(Inside, Rng)>,
}

impl SimStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new(seed: u64, weather: Weather) -> Self {
        let inside = Inside { weather, now_ms: 1_000_000, ..Inside::default() };
        Self { inside: Ranked::new(Rank::SimLog, (inside, Rng::new(seed))) }
    }

    /// Sets the faults from now on.
    pub fn set_weather(&self, weather: Weather) {
        self.inside.lock().0.weather = weather;
    }

    /// Lets `writes` more writes and deletions succeed. All later ones fail.
    pub fn end_after(&self, writes: u64) {
        self.inside.lock().0.writes_left = Some(writes);
    }

    /// Moves the store's clock.
    pub fn advance_ms(&self, ms: u64) {
        self.inside.lock().0.now_ms += ms;
    }

    /// All changes so far, in order.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        self.inside.lock().0.changes.clone()
    }

    /// How many changes there were so far.
    pub(crate) fn effects(&self) -> usize {
        self.inside.lock().0.changes.len()
    }

    /// Creates a store by applying `changes` in order.
    #[must_use]
    pub fn replay(changes: &[Change], seed: u64) -> Self {
        let store = Self::new(seed, Weather::default());
        {
            let (inside, _) = &mut *store.inside.lock();
            for change in changes {
                inside.apply(change.clone());
            }
        }
        store
    }

    /// The names of all objects.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.inside.lock().0.objects.keys().cloned().collect()
    }

    fn read<T>(
        &self,
        name: &str,
        what: impl FnOnce(&(Bytes, u64), &mut Rng, Weather) -> T,
    ) -> Result<T, StoreError> {
        let (inside, rng) = &mut *self.inside.lock();
        inside.now_ms += 1;
        if rng.chance(inside.weather.refused, 1000) {
            return Err(StoreError::Failed("503 SlowDown".to_owned()));
        }
        let object = inside.objects.get(name).ok_or(StoreError::NotFound)?;
        Ok(what(object, rng, inside.weather))
    }

    fn write(&self, change: Change, only_if_absent: bool) -> Result<(), StoreError> {
        self.change(change, only_if_absent).1
    }

    /// Makes a change. Returns the number of the effect, if the change had one, and the answer.
    pub(crate) fn change(
        &self,
        change: Change,
        only_if_absent: bool,
    ) -> (Option<usize>, Result<(), StoreError>) {
        let (inside, rng) = &mut *self.inside.lock();
        inside.now_ms += 1;
        let fails = || StoreError::Failed("no answer".to_owned());
        if rng.chance(inside.weather.refused, 1000) {
            return (None, Err(fails()));
        }
        if let Some(left) = &mut inside.writes_left {
            let Some(less) = left.checked_sub(1) else {
                return (None, Err(StoreError::Refused("the end".to_owned())));
            };
            *left = less;
        }
        if let (true, Change::Put(name, _)) = (only_if_absent, &change)
            && inside.objects.contains_key(name)
            && !inside.weather.dishonest
        {
            return (None, Err(StoreError::Exists));
        }
        let effect = Some(inside.changes.len());
        inside.apply(change);
        if rng.chance(inside.weather.lost, 1000) {
            // The client of a real store may have repeated the request, and got `Exists` for its
            // own object.
            let is_asked_again = only_if_absent && rng.chance(1, 2);
            return (effect, Err(if is_asked_again { StoreError::Exists } else { fails() }));
        }
        (effect, Ok(()))
    }
}

impl Inside {
    fn apply(&mut self, change: Change) {
        match &change {
            Change::Put(name, body) => {
                self.objects.insert(name.clone(), (body.clone(), self.now_ms));
            }
            Change::Delete(name) => drop(self.objects.remove(name)),
        }
        self.changes.push(change);
    }
}

/// The result of a read with the faults of `weather`: perhaps damaged or short.
fn weathered(bytes: Bytes, rng: &mut Rng, weather: Weather) -> Bytes {
    if bytes.is_empty() {
        return bytes;
    }
    if rng.chance(weather.wrong, 1000) {
        let mut other = bytes.to_vec();
        let at = rng.below(other.len() as u64) as usize;
        other[at] ^= 1 << rng.below(8);
        return other.into();
    }
    if rng.chance(weather.short, 1000) {
        let len = rng.below(bytes.len() as u64) as usize;
        return bytes.slice(..len);
    }
    bytes
}

impl Store for SimStore {
    fn title(&self) -> String {
        "sim://".to_owned()
    }

    fn create(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        self.write(Change::Put(name.to_owned(), body), true)
    }

    fn put(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        self.write(Change::Put(name.to_owned(), body), false)
    }

    fn get(&self, name: &str) -> Result<Bytes, StoreError> {
        self.read(name, |(bytes, _), rng, weather| weathered(bytes.clone(), rng, weather))
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.read(name, |(bytes, _), rng, weather| {
            let end = (range.end as usize).min(bytes.len());
            let start = (range.start as usize).min(end);
            weathered(bytes.slice(start..end), rng, weather)
        })
    }

    fn head(&self, name: &str) -> Result<Meta, StoreError> {
        self.read(name, |(bytes, modified_ms), _, _| Meta {
            name: name.to_owned(),
            len: bytes.len() as u64,
            modified_ms: *modified_ms,
        })
    }

    fn list(&self, folder: &str) -> Result<Vec<Meta>, StoreError> {
        let (inside, rng) = &mut *self.inside.lock();
        inside.now_ms += 1;
        if rng.chance(inside.weather.refused, 1000) {
            return Err(StoreError::Failed("503 SlowDown".to_owned()));
        }
        let lacks = rng.chance(inside.weather.stale, 1000);
        let newest = inside.objects.values().map(|(_, ms)| *ms).max().filter(|_| lacks);
        let prefix = format!("{folder}/");
        let inside = inside.objects.iter().filter(|(name, _)| name.starts_with(&prefix));
        let inside = inside.filter(|(_, (_, ms))| Some(*ms) != newest);
        let meta = |(name, (bytes, modified_ms)): (&String, &(Bytes, u64))| Meta {
            name: name.clone(),
            len: bytes.len() as u64,
            modified_ms: *modified_ms,
        };
        Ok(inside.map(meta).collect())
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.write(Change::Delete(name.to_owned()), false)
    }
}
