//! Tests a store before it is trusted: if many threads create one name at once, at most one may
//! succeed.

use buttress_base::thread;
use bytes::Bytes;

use crate::envelope::{Kind, VolumeId, wrap};
use crate::error::{Error, Result};
use crate::names::Names;
use crate::random;
use crate::retrying::RetryingStore;
use buttress_store::StoreError;

/// How many threads compete when a volume is made.
pub(crate) const RIVALS_NEW: u64 = 16;

/// Creates one object by `rivals` threads at once, and deletes it again.
///
/// # Errors
///
/// Those of [`race`].
pub(crate) fn run(store: &RetryingStore, names: &Names, rivals: u64) -> Result<()> {
    let (name, outcome) = race(store, names, rivals);
    end(store, &name);
    outcome
}

/// Deletes the object that a trial left.
pub(crate) fn end(store: &RetryingStore, name: &str) {
    let _ = store.delete(name);
}

/// Creates one object by `rivals` threads at once. Returns the object's name and the outcome of the
/// trial. The caller deletes the object. Waits for the store three times.
///
/// # Errors
///
/// [`Error::Unsafe`] if no creation or more than one succeeds, if the content is not the winner's,
/// or if a later creation succeeds too.
pub(crate) fn race(store: &RetryingStore, names: &Names, rivals: u64) -> (String, Result<()>) {
    let name = names.trial(&random::hex());
    let body = |rival: u64| {
        Bytes::from(wrap(Kind::Trial, VolumeId::default(), rival, 0, random::hex().as_bytes()))
    };
    let bodies: Vec<Bytes> = (0..=rivals).map(body).collect();
    let (late, racing) = bodies.split_last().map_or((None, &[][..]), |(l, r)| (Some(l), r));
    let answers: Vec<_> = thread::scope(|scope| {
        let each = |body: &Bytes| {
            let (name, body) = (&name, body.clone());
            scope.spawn(move || store.create_once(name, body))
        };
        let started: Vec<_> = racing.iter().map(each).collect();
        let failed = |_| Err(StoreError::Failed("a thread ended early".to_owned()));
        started.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect()
    });
    let outcome = verdict(store, &name, racing, &answers, late);
    (name, outcome)
}

fn verdict(
    store: &RetryingStore,
    name: &str,
    racing: &[Bytes],
    answers: &[std::result::Result<(), StoreError>],
    late: Option<&Bytes>,
) -> Result<()> {
    let wrong = |why: String| Err(Error::Unsafe { store: store.title(), why });
    let mut failures = answers.iter().filter_map(|answer| answer.as_ref().err());
    if let Some(source) = failures.find(|source| source.is_refusal()) {
        return Err(Error::Store { name: name.to_owned(), source: source.clone() });
    }
    let winners: Vec<usize> =
        answers.iter().enumerate().filter(|(_, a)| a.is_ok()).map(|(index, _)| index).collect();
    if winners.len() > 1 {
        let (won, all) = (winners.len(), answers.len());
        return wrong(format!("{won} of {all} creations of one name at once succeeded"));
    }
    // If all answers were lost, perhaps no creation had an effect. A late creation could then
    // succeed in an honest store.
    if winners.is_empty() && store.get(name)?.is_none() {
        return wrong("of several creations of one name at once none had an effect".to_owned());
    }
    let answer = late.map(|late| store.create_once(name, late.clone()));
    let Some(found) = store.get(name)? else {
        return wrong("what a creation made is gone".to_owned());
    };
    if answer.is_some_and(|answer| answer.is_ok()) || late.is_some_and(|late| *late == found) {
        return wrong("it creates a name that exists already".to_owned());
    }
    let is_right = match winners.first() {
        Some(&winner) => racing[winner] == found,
        None => racing.contains(&found),
    };
    if !is_right {
        return wrong("the object is not that of the creation that succeeded".to_owned());
    }
    Ok(())
}
