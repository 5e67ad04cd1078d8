//! Tests a store before it is trusted: if many threads create one name at once, at most one may
//! succeed.

use bytes::Bytes;

use crate::envelope::{Kind, VolumeId, wrap};
use crate::error::{Error, Result};
use crate::names::Names;
use crate::patient::Patient;
use crate::random;
use crate::store::StoreError;

/// How many threads compete when a volume is made.
pub(crate) const RIVALS_NEW: u64 = 16;

/// Creates one object by `rivals` threads at once.
///
/// # Errors
///
/// [`Error::Unsafe`] if no creation or more than one succeeds, if the object has other content, or
/// if a later creation succeeds.
pub(crate) fn run(store: &Patient, names: &Names, rivals: u64) -> Result<()> {
    let name = names.trial(&random::hex());
    let body = |rival: u64| {
        Bytes::from(wrap(Kind::Trial, VolumeId::default(), rival, 0, random::hex().as_bytes()))
    };
    let bodies: Vec<Bytes> = (0..=rivals).map(body).collect();
    let (late, racing) = bodies.split_last().map_or((None, &[][..]), |(l, r)| (Some(l), r));
    let answers: Vec<_> = std::thread::scope(|scope| {
        let each = |body: &Bytes| {
            let (name, body) = (&name, body.clone());
            scope.spawn(move || store.create_once(name, body))
        };
        let started: Vec<_> = racing.iter().map(each).collect();
        let failed = |_| Err(StoreError::Failed("a thread ended early".to_owned()));
        started.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect()
    });
    let outcome = verdict(store, &name, racing, &answers, late);
    let _ = store.delete(&name);
    outcome
}

fn verdict(
    store: &Patient,
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
    let found = store.get(name)?;
    let Some(found) = found else {
        // If answers were lost on the way, perhaps no creation succeeded. In that case the trial
        // proves nothing.
        return wrong("of several creations of one name at once none had an effect".to_owned());
    };
    let is_right = match winners.first() {
        Some(&winner) => racing[winner] == found,
        None => racing.contains(&found),
    };
    if !is_right {
        return wrong("the object is not that of the creation that succeeded".to_owned());
    }
    if let Some(late) = late {
        let answer = store.create_once(name, late.clone());
        if answer.is_ok() || store.get(name)?.is_some_and(|now| now != found) {
            return wrong("it creates a name that exists already".to_owned());
        }
    }
    Ok(())
}
