//! A simulated store that records when requests begin and end, for crash tests.
//!
//! # Invariants
//!
//! - **M1** A state after a crash has the effect of each request that had ended. It also has the
//!   effects of any subset of the requests under way that keeps M3.
//! - **M2** A request that a crash left out may still arrive later, since a store does not know
//!   that its client is dead. A creation that arrives late fails if the name is taken.
//! - **M3** Once an answer has shown the effect of another request, that effect stays, although the
//!   other request has no answer yet. The client may have acted on the effect: a read may have
//!   found the client's manifest, or another manifest in its place.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use buttress_base::{Rank, Ranked, Rng, thread};
use bytes::Bytes;

use crate::simulated::{Change, SimStore, Weather};
use crate::{Meta, Store, StoreError};

#[derive(Clone, Copy, Debug)]
enum Event {
    Begun(usize),
    Ended(usize),
    /// An answer has shown the effect of a request under way, if the effect is one of the first
    /// `effects` (M3).
    Seen {
        number: usize,
        effects: usize,
    },
    Mark(u64),
}

#[derive(Clone, Debug)]
struct Request {
    change: Change,
    only_if_absent: bool,
    /// The number of the effect in the order of all effects. `None` while there is no effect.
    effect: Option<usize>,
}

#[derive(Debug, Default)]
struct Record {
    events: Vec<Event>,
    requests: Vec<Request>,
    under_way: BTreeSet<usize>,
}

impl Record {
    /// Notes that an answer has shown the state of the names for which `is_meant` is true, after
    /// the first `effects` effects.
    fn see(&mut self, effects: usize, is_meant: impl Fn(&str) -> bool) {
        let requests = &self.requests;
        let meant = self.under_way.iter().filter(|number| is_meant(requests[**number].name()));
        self.events.extend(meant.map(|&number| Event::Seen { number, effects }));
    }
}

impl Request {
    fn name(&self) -> &str {
        match &self.change {
            Change::Put(name, _) | Change::Delete(name) => name,
        }
    }
}

/// A store that takes a random time for each change.
#[derive(Debug)]
pub struct TimedStore {
    inner: SimStore,
    record: Ranked<(Record, Rng)>,
    /// A change waits for fewer microseconds than this before its effect, and again after its
    /// effect.
    micros: u64,
}

/// The state that a crash at one event left.
#[derive(Debug)]
pub struct Crash {
    /// The store at that moment.
    pub store: Arc<SimStore>,
    /// All marks before the event, in their order.
    pub marks: Vec<u64>,
    /// The number of the event.
    pub event: usize,
    /// Selects the requests under way that the store has: 0 none, 1 all, and any other number a
    /// random subset.
    pub draw: usize,
    late: Vec<Request>,
}

impl Crash {
    /// Delivers the requests that were under way and are not in the store (M2).
    pub fn deliver(&self) -> usize {
        for Request { change, only_if_absent, .. } in &self.late {
            // Without faults, only a creation can fail.
            let _ = match change {
                Change::Put(name, body) if *only_if_absent => self.store.create(name, body.clone()),
                Change::Put(name, body) => self.store.put(name, body.clone()),
                Change::Delete(name) => self.store.delete(name),
            };
        }
        self.late.len()
    }
}

impl TimedStore {
    /// Creates an empty store. A change takes at most `most` before its effect, and again after its
    /// effect.
    #[must_use]
    pub fn new(seed: u64, weather: Weather, most: Duration) -> Self {
        let record = Ranked::new(Rank::SimLog, (Record::default(), Rng::new(seed)));
        let micros = most.as_micros() as u64 + 1;
        Self { inner: SimStore::new(seed, weather), record, micros }
    }

    /// Records an acknowledgement. Later states have this mark.
    pub fn mark(&self, mark: u64) {
        self.record.lock().0.events.push(Event::Mark(mark));
    }

    /// How many events there are.
    #[must_use]
    pub fn events(&self) -> usize {
        self.record.lock().0.events.len()
    }

    /// Shows states that crashes may leave (M1): at each `stride`-th event, with none and with all
    /// of the requests under way, and with `draws` random subsets. Returns the number of shown
    /// states.
    pub fn crashes(
        &self,
        rng: &mut Rng,
        draws: usize,
        stride: usize,
        mut look: impl FnMut(&Crash),
    ) -> usize {
        let (events, requests) = {
            let record = &self.record.lock().0;
            (record.events.clone(), record.requests.clone())
        };
        let first = rng.below(stride as u64) as usize;
        let (mut under_way, mut ended, mut marks) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let mut shown = 0;
        for (event, &what) in events.iter().enumerate() {
            match what {
                Event::Begun(number) => drop(under_way.insert(number)),
                Event::Ended(number) => {
                    under_way.remove(&number);
                    ended.insert(number);
                }
                Event::Seen { number, effects } => {
                    if requests[number].effect.is_some_and(|at| at < effects) {
                        under_way.remove(&number);
                        ended.insert(number);
                    }
                }
                Event::Mark(number) => marks.push(number),
            }
            if event < first || !(event - first).is_multiple_of(stride) {
                continue;
            }
            let draws = if under_way.is_empty() { 1 } else { 2 + draws };
            for draw in 0..draws {
                let mut is_there = |_: &usize| match draw {
                    0 => false,
                    1 => true,
                    _ => rng.chance(1, 2),
                };
                let (arrived, late): (Vec<usize>, Vec<usize>) =
                    under_way.iter().partition(|number| is_there(number));
                let effect = |number: &usize| {
                    let request = &requests[*number];
                    request.effect.map(|at| (at, request.change.clone()))
                };
                let mut changes: Vec<_> = ended.iter().chain(&arrived).filter_map(effect).collect();
                changes.sort_by_key(|(at, _)| *at);
                let changes: Vec<_> = changes.into_iter().map(|(_, change)| change).collect();
                let store = Arc::new(SimStore::replay(&changes, event as u64));
                let late = late.into_iter().map(|number| requests[number].clone()).collect();
                look(&Crash { store, marks: marks.clone(), event, draw, late });
                shown += 1;
            }
        }
        shown
    }

    fn pause(&self) {
        let micros = self.record.lock().1.below(self.micros);
        thread::sleep(Duration::from_micros(micros));
    }

    fn change(&self, change: Change, only_if_absent: bool) -> Result<(), StoreError> {
        let number = {
            let record = &mut self.record.lock().0;
            let number = record.requests.len();
            record.requests.push(Request { change: change.clone(), only_if_absent, effect: None });
            record.events.push(Event::Begun(number));
            record.under_way.insert(number);
            number
        };
        self.pause();
        let name = match &change {
            Change::Put(name, _) | Change::Delete(name) => name.clone(),
        };
        let (effect, answer) = self.inner.change(change, only_if_absent);
        let effects = self.inner.effects();
        self.record.lock().0.requests[number].effect = effect;
        self.pause();
        let record = &mut self.record.lock().0;
        record.under_way.remove(&number);
        // The answer to a creation shows whether there was an object of that name.
        if only_if_absent && matches!(answer, Ok(()) | Err(StoreError::Exists)) {
            record.see(effects, |other| other == name);
        }
        record.events.push(Event::Ended(number));
        answer
    }

    /// Notes the objects that an answer to a read has shown (M3).
    fn seen<T>(
        &self,
        answer: Result<T, StoreError>,
        is_meant: impl Fn(&str) -> bool,
    ) -> Result<T, StoreError> {
        if matches!(answer, Ok(_) | Err(StoreError::NotFound)) {
            let effects = self.inner.effects();
            self.record.lock().0.see(effects, is_meant);
        }
        answer
    }
}

impl Store for TimedStore {
    fn title(&self) -> String {
        self.inner.title()
    }

    fn create(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        self.change(Change::Put(name.to_owned(), body), true)
    }

    fn put(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        self.change(Change::Put(name.to_owned(), body), false)
    }

    fn get(&self, name: &str) -> Result<Bytes, StoreError> {
        self.seen(self.inner.get(name), |other| other == name)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.seen(self.inner.get_range(name, range), |other| other == name)
    }

    fn head(&self, name: &str) -> Result<Meta, StoreError> {
        self.seen(self.inner.head(name), |other| other == name)
    }

    fn list(&self, folder: &str) -> Result<Vec<Meta>, StoreError> {
        let prefix = format!("{folder}/");
        self.seen(self.inner.list(folder), |other| other.starts_with(&prefix))
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.change(Change::Delete(name.to_owned()), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With two requests under way, crashes leave each request alone, no request, or both requests.
    /// A request that is left out arrives later, except a creation of a name that is taken (M1,
    /// M2).
    #[test]
    fn requests_under_way_are_there_in_any_selection() {
        let store = TimedStore::new(1, Weather::default(), Duration::from_millis(5));
        store.create("a/0", Bytes::from_static(b"first")).expect("no such name");
        store.mark(7);
        std::thread::scope(|scope| {
            for name in ["a/1", "a/2"] {
                let store = &store;
                scope.spawn(move || store.create(name, Bytes::from_static(b"old")).expect("new"));
            }
        });
        let mut seen = BTreeSet::new();
        let shown = store.crashes(&mut Rng::new(3), 8, 1, |crash| {
            let names = crash.store.names();
            if crash.marks == [7] {
                assert!(names.contains(&"a/0".to_owned()));
                seen.insert(names.len());
            }
            for name in ["a/1", "a/2"] {
                let _ = crash.store.create(name, Bytes::from_static(b"new"));
            }
            let was = crash.store.changes().len();
            let late = crash.deliver();
            assert!(crash.store.changes().len() - was <= late);
            assert_eq!(crash.store.names().iter().filter(|name| **name != "a/0").count(), 2);
        });
        assert_eq!(seen, [1, 2, 3].into());
        assert!(shown > store.events());
    }

    /// A creation has no answer yet, and another answer has shown its object: a read, or the
    /// refusal of a second creation. No later crash loses the object (M3).
    #[test]
    fn shown_objects_survive_crashes() {
        for looks in [true, false] {
            let store = TimedStore::new(4, Weather::default(), Duration::from_millis(20));
            std::thread::scope(|scope| {
                scope.spawn(|| store.create("a/1", Bytes::from_static(b"one")).expect("new"));
                if looks {
                    while store.get("a/1").is_err() {}
                } else {
                    while store.inner.get("a/1").is_err() {}
                    store.create("a/1", Bytes::from_static(b"two")).expect_err("it is there");
                }
                store.mark(1);
            });
            store.crashes(&mut Rng::new(3), 4, 1, |crash| {
                let is_there = crash.store.names() == ["a/1"];
                assert!(is_there || crash.marks.is_empty(), "{looks}: {}", crash.event);
            });
        }
    }
}
