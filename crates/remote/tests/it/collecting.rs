//! Tests of garbage, pins and clones: unneeded objects are deleted, and all others stay.

use std::sync::Arc;
use std::time::Duration;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_remote::store::simulated::{SimStore, Weather};
use buttress_remote::store::watched::{Request, Watched};
use buttress_remote::store::{Store, StoreError};
use buttress_remote::{At, Error, Options, RemoteDevice, Secret, Site};

use crate::{create, open, options, store};

const LEN: u64 = 8 << 20;

/// Options with which old commits are deleted at once.
fn hasty() -> Options {
    Options { min_keep: Duration::ZERO, ..options() }
}

fn reading() -> Options {
    Options { write: false, ..hasty() }
}

fn site(store: &Arc<SimStore>, prefix: &str, options: Options) -> Site {
    Site::in_store(store.clone(), prefix, options)
}

/// Overwrites random ranges, and makes commits meanwhile.
fn churn(device: &RemoteDevice, model: &MemoryDevice, rng: &mut Rng, writes: u64) {
    for step in 0..writes {
        let at = rng.below(LEN / 4096 - 8) * 4096;
        let mut content = vec![0; 4096 * (1 + rng.below(8) as usize)];
        rng.fill(&mut content);
        device.write_at(at, &content).expect("within");
        model.write_at(at, &content).expect("within");
        if step % 10 == 0 {
            device.flush().expect("a good store");
        }
    }
    device.flush().expect("a good store");
}

#[track_caller]
fn same(device: &dyn Device, model: &MemoryDevice) {
    let (mut found, mut right) = (vec![0; LEN as usize], vec![0; LEN as usize]);
    device.read_at(0, &mut found).expect("whole");
    model.read_at(0, &mut right).expect("whole");
    assert!(found == right, "the content differs");
}

/// Makes passes until the last two found little garbage.
fn collect_all(device: &RemoteDevice) {
    for _ in 0..200 {
        device.checkpoint().expect("a good store");
        let first = device.collect().expect("a good store");
        let second = device.collect().expect("a good store");
        // The objects of the previous checkpoint are deleted only by the next pass.
        if first.moved_bytes + second.moved_bytes == 0 && first.objects + second.objects < 6 {
            return;
        }
    }
    panic!("the collector does not come to an end");
}

/// After many overwrites the store has little more than the live data. The content is right, before
/// and after the volume is opened again. The store has no object that the table lacks.
#[test]
fn overwritten_data_goes() {
    let store = store(1);
    drop(create(&store, LEN));
    let device = open(&store, hasty()).expect("free");
    let model = MemoryDevice::new(LEN);
    let mut rng = Rng::new(7);
    churn(&device, &model, &mut rng, 3000);
    let before = device.status();
    assert!(before.object_bytes > 4 * LEN, "there is garbage");
    collect_all(&device);
    same(&device, &model);
    let after = device.status();
    assert!(after.object_bytes < 3 * LEN, "{after:?}");
    assert!(store.names().len() < 500, "{} objects", store.names().len());
    device.close().expect("a good store");
    same(&open(&store, reading()).expect("whole"), &model);
}

/// A pinned commit can be read although older and newer commits are collected. The commit is
/// deleted after its pin was deleted.
#[test]
fn a_pinned_commit_stays() {
    let store = store(2);
    drop(create(&store, LEN));
    let device = open(&store, hasty()).expect("free");
    let model = MemoryDevice::new(LEN);
    let mut rng = Rng::new(9);
    churn(&device, &model, &mut rng, 500);
    let place = site(&store, "v", hasty());
    let number = place.pin("then").expect("a commit");
    place.pin("then").expect("the very same");
    place.pin("no/name").expect_err("no name");
    let then = model.fork();
    churn(&device, &model, &mut rng, 1500);
    collect_all(&device);
    let at = |at| Options { at, ..reading() };
    site(&store, "v", at(At::Number(number.0))).open().expect_err("its manifest went");
    same(&site(&store, "v", at(At::Pin("then".to_owned()))).open().expect("pinned"), &then);
    same(&device, &model);
    let writing = Options { at: At::Pin("then".to_owned()), ..hasty() };
    let error = site(&store, "v", writing).open().expect_err("an old commit");
    assert!(matches!(error, Error::Pin { .. }), "{error}");
    let listed = place.commits(3).expect("a store");
    assert!(listed.iter().any(|commit| commit.pin.as_deref() == Some("then")), "{listed:?}");
    let kept = device.status().object_bytes;
    place.unpin("then").expect("a pin");
    place.unpin("then").expect_err("no pin");
    collect_all(&device);
    assert!(device.status().object_bytes < kept, "what the pin kept went");
    same(&device, &model);
}

/// A clone and its base are written and collected independently, and neither loses data. The same
/// holds for a clone of a clone, and for a clone of a pin.
#[test]
fn clones_share_and_stay_apart() {
    let store = store(3);
    drop(create(&store, LEN));
    let base = open(&store, hasty()).expect("free");
    let base_model = MemoryDevice::new(LEN);
    let mut rng = Rng::new(5);
    churn(&base, &base_model, &mut rng, 500);
    let before = store.changes().len();
    site(&store, "v", hasty()).clone_to(&site(&store, "w", hasty())).expect("a clone");
    let written = store.changes()[before..].len();
    assert!(written < 6, "{written} changes");
    let model = base_model.fork();
    churn(&base, &base_model, &mut rng, 1000);
    collect_all(&base);
    let clone = site(&store, "w", hasty()).open().expect("a volume");
    same(&clone, &model);
    churn(&clone, &model, &mut rng, 700);
    collect_all(&clone);
    same(&clone, &model);
    site(&store, "w", hasty()).clone_to(&site(&store, "x", hasty())).expect("a clone of it");
    let error = site(&store, "v", hasty()).clone_to(&site(&store, "w", hasty()));
    error.expect_err("there is one");
    let third_model = model.fork();
    churn(&clone, &model, &mut rng, 700);
    collect_all(&clone);
    let third = site(&store, "x", hasty()).open().expect("a volume");
    same(&third, &third_model);
    churn(&third, &third_model, &mut rng, 300);
    collect_all(&third);
    for (prefix, device, model) in
        [("v", base, &base_model), ("w", clone, &model), ("x", third, &third_model)]
    {
        same(&device, model);
        device.close().expect("a good store");
        same(&site(&store, prefix, reading()).open().expect("whole"), model);
    }
}

/// A reader beside a writer and a collector reads the bytes of its own commit, or gets an error.
#[test]
fn a_reader_that_comes_too_late_has_an_error() {
    let store = store(4);
    drop(create(&store, LEN));
    let device = open(&store, hasty()).expect("free");
    let model = MemoryDevice::new(LEN);
    let mut rng = Rng::new(6);
    churn(&device, &model, &mut rng, 300);
    let reader = open(&store, reading()).expect("a commit");
    let then = model.fork();
    churn(&device, &model, &mut rng, 1500);
    collect_all(&device);
    let (mut errors, mut right) = (0, 0);
    for at in (0..LEN).step_by(16 << 10) {
        let (mut found, mut wanted) = (vec![0; 16 << 10], vec![0; 16 << 10]);
        then.read_at(at, &mut wanted).expect("within");
        match reader.read_at(at, &mut found) {
            Ok(()) => {
                assert!(found == wanted, "other bytes at {at}");
                right += 1;
            }
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 0, "{right} reads were right, and nothing was collected");
}

/// A collector runs while the store fails at random. After every prefix of the store's changes, the
/// newest commit is whole.
#[test]
fn a_collector_that_ends_anywhere_leaves_the_volume_whole() {
    let store = store(5);
    drop(create(&store, LEN));
    let device = open(&store, hasty()).expect("free");
    let model = MemoryDevice::new(LEN);
    let mut rng = Rng::new(8);
    churn(&device, &model, &mut rng, 600);
    let begun = store.changes().len();
    store.set_weather(Weather { refused: 30, lost: 50, wrong: 10, ..Weather::default() });
    collect_all(&device);
    let changes = store.changes();
    for count in (begun..=changes.len()).step_by(7) {
        let cut = Arc::new(SimStore::replay(&changes[..count], 1));
        same(&open(&cut, reading()).expect("every prefix opens"), &model);
    }
}

/// Objects of a writer that ended before its commit are deleted; all others stay.
#[test]
fn objects_of_a_crashed_writer_are_swept() {
    let store = store(11);
    let device = create(&store, LEN);
    let (model, mut rng) = (MemoryDevice::new(LEN), Rng::new(11));
    churn(&device, &model, &mut rng, 30);
    let before = store.names();
    device.write_at(0, &vec![7; 1 << 20]).expect("within");
    while device.status().in_flight > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let orphans = store.names().len() - before.len();
    assert!(orphans >= 15, "objects that no commit names");
    device.abandon();
    drop(device);
    store.advance_ms(60_000);
    let device = open(&store, hasty()).expect("the writer is dead");
    churn(&device, &model, &mut rng, 30);
    let done = device.collect_all().expect("a good store");
    assert_eq!(done.orphans, orphans as u64, "{done:?}");
    same(&device, &model);
    device.close().expect("a good store");
    same(&open(&store, reading()).expect("a commit"), &model);
}

/// A volume is deleted as a whole, unless a pin, a reader or a writer needs it. Another volume can
/// be made in its place.
#[test]
fn a_volume_is_deleted_unless_it_is_needed() {
    let store = store(12);
    let device = create(&store, LEN);
    device.write_at(0, &[7; 1 << 20]).expect("within");
    let error = site(&store, "v", options()).delete().expect_err("a writer has it");
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    device.close().expect("a good store");
    drop(device);
    site(&store, "v", options()).pin("kept").expect("a commit");
    let error = site(&store, "v", options()).delete().expect_err("pinned");
    assert!(error.to_string().contains("kept"), "{error}");
    let base = site(&store, "v", options());
    base.clone_to(&site(&store, "w", options())).expect("a clone");
    base.unpin("kept").expect("a pin");
    base.delete().expect_err("a clone needs it");
    site(&store, "w", options()).delete().expect("nothing needs it");
    assert!(store.names().iter().all(|name| name.starts_with("v/")), "{:?}", store.names());
    assert!(base.delete().expect("nothing needs it") > 10);
    assert_eq!(store.names(), Vec::<String>::new());
    let error = base.delete().expect_err("there is none");
    assert!(matches!(error, Error::NoVolume { .. }), "{error}");
    drop(create(&store, LEN));
}

/// A deletion of a clone is interrupted after any number of changes. The clone is whole or gone,
/// and the next deletion leaves nothing of it, not even its pin in the base.
#[test]
fn a_deletion_that_ends_anywhere_is_finished_by_the_next() {
    for writes in 0.. {
        let store = store(13);
        let device = create(&store, LEN);
        device.write_at(0, &[7; 4096]).expect("within");
        device.close().expect("a good store");
        let (base, clone) = (site(&store, "v", options()), site(&store, "w", options()));
        base.clone_to(&clone).expect("a clone");
        store.end_after(writes);
        let first = clone.delete();
        store.end_after(u64::MAX);
        let is_done = first.is_ok();
        store.advance_ms(60_000);
        if clone.has_volume().expect("a good store") {
            let mut content = [0; 4096];
            let reader = site(&store, "w", reading()).open().expect("it is whole");
            reader.read_at(0, &mut content).expect("within");
            assert!(content == [7; 4096], "after {writes} changes");
            base.delete().expect_err("the clone needs it");
        }
        match clone.delete() {
            Ok(_) => assert!(!is_done),
            Err(error) => assert!(matches!(error, Error::NoVolume { .. }), "{error}"),
        }
        let left = store.names();
        let is_of_base = |name: &String| name.starts_with("v/") && !name.starts_with("v/pin/");
        assert!(left.iter().all(is_of_base), "after {writes} changes: {left:?}");
        base.delete().expect("nothing needs it");
        if is_done {
            return;
        }
    }
}

/// A store in front of another store. It refuses writes under one prefix with a given answer.
#[derive(Debug)]
pub(crate) struct Refusing {
    pub(crate) inner: Arc<SimStore>,
    pub(crate) prefix: &'static str,
    pub(crate) answer: StoreError,
}

impl Watched for Refusing {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn look(&self, request: Request<'_>) -> Result<(), StoreError> {
        match request {
            Request::Create(name) | Request::Put(name) if name.starts_with(self.prefix) => {
                Err(self.answer.clone())
            }
            _ => Ok(()),
        }
    }
}

/// If the store refuses to write a clone, nothing of the clone stays in the base. If the store does
/// not answer, the manifest may still arrive: the pin stays, and the message names the pin.
#[test]
fn a_clone_that_is_refused_leaves_no_pin() {
    let inner = store(14);
    drop(create(&inner, LEN));
    let pins = || inner.names().into_iter().filter(|name| name.contains("/pin/")).count();
    let clone = |answer: StoreError| {
        let store = Arc::new(Refusing { inner: inner.clone(), prefix: "w/", answer });
        let brief = Options { timeout: Duration::from_millis(50), ..options() };
        let site = |prefix| Site::in_store(store.clone(), prefix, brief.clone());
        site("v").clone_to(&site("w")).expect_err("it is refused")
    };
    let error = clone(StoreError::Refused("no permission".to_owned()));
    assert!(error.to_string().contains("no permission"), "{error}");
    assert_eq!(pins(), 0);
    let error = clone(StoreError::Failed("no answer".to_owned()));
    assert!(error.to_string().contains("remote unpin"), "{error}");
    assert_eq!(pins(), 1);
    let base = site(&inner, "v", options());
    let name = base.commits(9).expect("a store").into_iter().find_map(|commit| commit.pin);
    let name = name.expect("the pin");
    assert!(error.to_string().contains(&name), "{error}");
    base.unpin(&name).expect("it is there");
    base.delete().expect("nothing needs it");
}

/// Lists lack the object that was written last. A deletion of an encrypted clone still releases its
/// base, also after an earlier deletion that ended anywhere.
#[test]
fn a_deletion_does_not_trust_lists() {
    let secret = || Secret::new(b"secret".to_vec()).expect("some bytes");
    for writes in (6..20).chain([u64::MAX]) {
        let store = store(15);
        let site = |prefix| site(&store, prefix, options()).encrypted(secret());
        drop(site("v").create(LEN).expect("a store"));
        site("v").clone_to(&site("w")).expect("a clone");
        store.set_weather(Weather { stale: 1000, ..Weather::default() });
        store.end_after(writes);
        let first = site("w").delete();
        store.end_after(u64::MAX);
        store.advance_ms(60_000);
        if first.is_err() {
            // The last change of the first deletion was the copy of the manifest, or a later
            // change.
            let second = site("w").delete();
            assert!(second.is_ok(), "after {writes} changes: {second:?}");
        }
        store.set_weather(Weather::default());
        let pins = store.names().into_iter().filter(|name| name.starts_with("v/pin/"));
        assert_eq!(pins.count(), 0, "after {writes} changes");
    }
}
