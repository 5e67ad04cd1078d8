//! Tests that a volume in a store behaves as every device does.

use std::io::IoSlice;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::device::Content;
use buttress_block::{Device, Error, FileDevice, MemoryDevice, Space, Write};
use buttress_remote::store::simulated::{SimStore, Weather};
use buttress_remote::store::{Store, StoreError};
use buttress_remote::{Options, Secret, Site};

use crate::collecting::Refusing;
use crate::{create, open, options, store};

pub(crate) const LEN: u64 = 130 << 20;

/// Makes random requests to a device and to a plain model. Every read returns the content of the
/// model.
pub(crate) fn conforms(device: &dyn Device, seed: u64, requests: u64) {
    let model = MemoryDevice::new(LEN);
    let mut rng = Rng::new(seed);
    assert_eq!(device.len(), LEN);
    for _ in 0..requests {
        let around = [0, 64 << 10, 64 << 20, LEN - (1 << 20)];
        let base = *rng.choose(&around).expect("some");
        let grain = if rng.chance(1, 4) { 1 } else { 4096 };
        let at = (base + rng.below(1 << 20)) / grain * grain;
        let len = ((1 + rng.below(20)) * 4096 / if grain == 1 { 7 } else { 1 }).min(LEN - at);
        let mut content = vec![0; len as usize];
        rng.fill(&mut content);
        match rng.below(10) {
            0..4 => {
                device.write_at(at, &content).expect("within");
                model.write_at(at, &content).expect("within");
            }
            4 => {
                let (one, two) = content.split_at(content.len() / 2);
                let bufs = [IoSlice::new(one), IoSlice::new(two)];
                device.write_vectored_at(at, &bufs).expect("within");
                model.write_vectored_at(at, &bufs).expect("within");
            }
            5 => {
                device.write_zeroes(at, len, Space::Free).expect("within");
                model.write_zeroes(at, len, Space::Free).expect("within");
            }
            6 => device.flush().expect("a good device"),
            7 => {
                let found = device.extent_at(at, len).expect("within");
                assert!(found.len > 0 && found.len <= len);
                if found.content == Content::Hole {
                    let mut bytes = vec![1; found.len as usize];
                    model.read_at(at, &mut bytes).expect("within");
                    assert!(bytes.iter().all(|byte| *byte == 0));
                }
            }
            _ => {
                let mut other = content.clone();
                device.read_at(at, &mut content).expect("within");
                model.read_at(at, &mut other).expect("within");
                assert!(content == other, "a read of {len} at {at} differs");
            }
        }
    }
    for at in [0, 64 << 20, LEN - (2 << 20)] {
        let (mut found, mut right) = (vec![0; 2 << 20], vec![1; 2 << 20]);
        device.read_at(at, &mut found).expect("within");
        model.read_at(at, &mut right).expect("within");
        assert!(found == right, "the content at {at} differs");
    }
    let error = device.write_at(LEN - 1, &[0; 2]).expect_err("past the end");
    assert!(matches!(error, Error::PastEnd { device_len: LEN, .. }), "{error}");
    device.read_at(u64::MAX, &mut [0]).expect_err("past the end");
}

#[test]
fn memory_and_files_conform() {
    conforms(&MemoryDevice::new(LEN), 1, 400);
    let dir = tempfile::tempdir().expect("tempdir");
    let device = FileDevice::create(dir.path().join("x.img"), LEN).expect("a file");
    conforms(&device, 1, 400);
}

/// A volume in a store behaves as every device does, also when the store fails at random, and with
/// many commits.
#[test]
fn a_volume_in_a_store_conforms_in_any_weather() {
    for seed in 0..3 {
        let store = store(seed);
        let device = create(&store, LEN);
        let weather =
            Weather { refused: 30, lost: 50, wrong: 20, short: 20, stale: 100, dishonest: false };
        store.set_weather(if seed == 0 { Weather::default() } else { weather });
        conforms(&device, seed, 1200);
        device.close().expect("a store that recovers");
    }
}

/// An encrypted volume behaves as every device does, too, also when the store fails at random. No
/// object contains written bytes in the clear, or the header of an unencrypted object.
#[test]
fn an_encrypted_volume_conforms_in_any_weather() {
    for seed in 0..2 {
        let store = store(seed);
        let device = encrypted(&store, options(), "secret").create(LEN).expect("a store");
        let weather =
            Weather { refused: 30, lost: 50, wrong: 20, short: 20, stale: 100, dishonest: false };
        store.set_weather(if seed == 0 { Weather::default() } else { weather });
        conforms(&device, seed, 500);
        let mark = b"a mark that no object may have".repeat(200);
        device.write_at(4096, &mark).expect("within");
        device.close().expect("a store that recovers");
        store.set_weather(Weather::default());
        let all = store.list("v").expect("a store");
        assert!(all.len() > 8);
        for meta in all.iter().filter(|meta| !meta.name.contains("/key/")) {
            let bytes = store.get(&meta.name).expect("it is listed");
            let has = |what: &[u8]| bytes.windows(what.len()).any(|part| part == what);
            assert!(!has(&mark[..30]) && !has(b"BUTTRESS") && !has(b"epoch"), "{}", meta.name);
        }
        let reading = Options { write: false, ..options() };
        let mut found = vec![0; mark.len()];
        let reader = encrypted(&store, reading.clone(), "secret").open().expect("the key");
        reader.read_at(4096, &mut found).expect("within");
        assert!(found == mark);
        let error = encrypted(&store, reading.clone(), "wrong").open().expect_err("wrong");
        assert!(error.to_string().contains("key file is wrong"), "{error}");
        let error = open(&store, reading).expect_err("no key");
        assert!(matches!(error, buttress_remote::Error::Encrypted { .. }), "{error}");
    }
}

/// A clone has the key of its base. The clone and the base may each get another secret. A volume
/// that is not encrypted is not opened with a key: an attacker may have put it in place of an
/// encrypted one.
#[test]
fn keys_change_and_clones_have_their_own() {
    let store = store(1);
    let base = encrypted(&store, options(), "one");
    let device = base.create(LEN).expect("a store");
    device.write_at(0, &[7; 4096]).expect("within");
    device.close().expect("a store");
    let wrong = |error: buttress_remote::Error, word: &str| {
        assert!(error.to_string().contains(word), "{error}");
    };
    let plain = Site::in_store(store.clone(), "c", options());
    wrong(base.clone_to(&plain).expect_err("plain"), "encrypted");
    let secret = |text: &str| Secret::new(text.into()).expect("some bytes");
    let clone = Site::in_store(store.clone(), "c", options()).encrypted(secret("two"));
    base.clone_to(&clone).expect("a store");
    base.rekey(&secret("three")).expect("the key");
    base.rekey(&secret("four")).expect("it is open");
    wrong(encrypted(&store, options(), "one").open().expect_err("former"), "wrong");
    for device in [encrypted(&store, options(), "four").open(), clone.open()] {
        let device = device.expect("the key");
        let mut found = [0; 4096];
        device.read_at(0, &mut found).expect("within");
        assert!(found == [7; 4096]);
        device.write_at(0, &found).expect("within");
        device.close().expect("a store");
    }
    let plain = Site::in_store(store.clone(), "p", options());
    drop(plain.create(LEN).expect("a store"));
    let keyed = Site::in_store(store.clone(), "p", options()).encrypted(secret("one"));
    wrong(keyed.open().expect_err("plain"), "not encrypted");
    wrong(keyed.rekey(&secret("two")).expect_err("plain"), "not encrypted");
    base.delete().expect_err("the clone needs it");
    encrypted(&store, options(), "four").unpin("nothing").expect_err("no pin");
    clone.delete().expect("nothing needs it");
    assert!(store.list("c").expect("a store").is_empty(), "the key goes last");
}

/// A volume is deleted and made again at one place: the new volume has its own key, also for a
/// program that knew the key of the former volume.
#[test]
fn a_volume_that_is_made_again_has_its_own_key() {
    let store = store(3);
    let site = encrypted(&store, options(), "one");
    drop(site.create(LEN).expect("a store"));
    let other = encrypted(&store, options(), "one");
    drop(other.open().expect("the key"));
    site.delete().expect("nothing needs it");
    for site in [&site, &other] {
        let device = site.create(LEN).expect("a store");
        device.write_at(0, &[7; 4096]).expect("within");
        device.close().expect("a store");
        let mut found = [0; 4096];
        let reader = encrypted(&store, options(), "one").open().expect("the key");
        reader.read_at(0, &mut found).expect("within");
        assert!(found == [7; 4096]);
        reader.close().expect("a store");
        encrypted(&store, options(), "one").delete().expect("nothing needs it");
    }
}

/// Answers are lost while the secret changes. After a success, only the new secret opens the
/// volume. After an error, one of the secrets opens the volume, and the message says nothing wrong
/// about that secret.
#[test]
fn a_change_of_the_secret_with_lost_answers_says_what_is_true() {
    let mut done = 0;
    let two = || Secret::new("two".into()).expect("some bytes");
    for seed in 0..6 {
        let store = store(seed);
        drop(encrypted(&store, options(), "one").create(LEN).expect("a store"));
        let site = encrypted(&store, options(), "one");
        site.has_volume().expect("the key");
        store.set_weather(Weather { refused: 200, lost: 600, ..Weather::default() });
        let changed = site.rekey(&two());
        store.set_weather(Weather::default());
        let opens = |secret: &str| encrypted(&store, options(), secret).has_volume().is_ok();
        match changed {
            Ok(()) => {
                done += 1;
                assert!(opens("two") && !opens("one"), "seed {seed}");
                let keys = store.names().into_iter().filter(|name| name.contains("/key/"));
                assert_eq!(keys.count(), 1, "seed {seed}");
            }
            Err(error) => {
                let text = error.to_string();
                let says_new = text.contains("the new secret opens the volume, and the old");
                let says_open = text.contains("the new secret or the old one");
                assert_eq!(opens("two"), !opens("one"), "seed {seed}");
                assert!(opens("two") || !says_new, "seed {seed}: {text}");
                assert!(opens("one") || says_new || says_open, "seed {seed}: {text}");
            }
        }
    }
    assert!(done > 0);
    // The creation has no answer, and may still arrive.
    let inner = store(7);
    drop(encrypted(&inner, options(), "one").create(LEN).expect("a store"));
    let answer = StoreError::Failed("no answer".to_owned());
    let silent = Arc::new(Refusing { inner, prefix: "v/key/", answer });
    let secret = Secret::new("one".into()).expect("some bytes");
    let site = Site::in_store(silent, "v", options()).encrypted(secret);
    let error = site.rekey(&two()).expect_err("no answer").to_string();
    assert!(error.contains("the new secret or the old one"), "{error}");
}

fn encrypted(store: &Arc<SimStore>, options: Options, secret: &str) -> Site {
    let secret = Secret::new(secret.into()).expect("some bytes");
    Site::in_store(store.clone(), "v", options).encrypted(secret)
}

/// A volume in a folder of this machine behaves as every device does.
#[test]
fn a_volume_in_a_folder_conforms() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = format!("file://{}", dir.path().join("volume").display());
    let site = Site::of(path.as_ref(), options()).expect("a place");
    let device = site.create(LEN).expect("a folder");
    conforms(&device, 5, 300);
    device.close().expect("a folder");
    let error = Site::of(format!("{path}?colour=red").as_ref(), options()).expect_err("no option");
    assert!(error.to_string().contains("colour"), "{error}");
}

/// Flushed data can be read after each opening. The data is found by the extents of recent objects,
/// and by checkpoints of a map with more pages than fit in memory.
#[test]
fn content_comes_back_after_each_opening() {
    let store = store(9);
    drop(create(&store, LEN));
    let model = MemoryDevice::new(LEN);
    let mut rng = Rng::new(4);
    for round in 0..6_u64 {
        let device = open(&store, options()).expect("the writer before has closed");
        let mut found = vec![0; LEN as usize];
        device.read_at(0, &mut found).expect("whole");
        let mut right = vec![0; LEN as usize];
        model.read_at(0, &mut right).expect("whole");
        assert!(found == right, "round {round} differs");
        for _ in 0..(if round % 2 == 0 { 10 } else { 400 }) {
            let at = rng.below(LEN / 4096 - 8) * 4096;
            let mut content = vec![0; 4096 * (1 + rng.below(8) as usize)];
            rng.fill(&mut content);
            let bufs = vec![IoSlice::new(&content)];
            let class = buttress_block::Class::Data;
            device.write_many(&[Write { offset: at, bufs, class }]).expect("within");
            model.write_at(at, &content).expect("within");
            if rng.chance(1, 2) {
                device.flush().expect("a good store");
            }
        }
        let hole = rng.below(LEN / 2) / 4096 * 4096;
        device.discard(hole, 4 << 20).expect("within");
        model.discard(hole, 4 << 20).expect("within");
        device.close().expect("a good store");
    }
    let device = open(&store, Options { write: false, ..options() }).expect("for reading");
    assert!(!device.writable());
    device.write_at(0, &[0; 4096]).expect_err("for reading");
    assert!(device.status().live_bytes > 0);
    assert_eq!(Arc::strong_count(&store), 2);
}

/// A volume grows when it is opened for writing: its old content stays, the rest reads as zeroes,
/// and readers of older commits see the older length. A volume does not shrink.
#[test]
fn a_volume_grows_when_it_is_opened() {
    let store = store(6);
    let device = create(&store, LEN / 2 - 4096);
    device.write_at(0, &[1; 4096]).expect("within");
    device.write_at(LEN / 2 - 8192, &[2; 4096]).expect("within");
    device.close().expect("a store");
    let reading = Options { write: false, ..options() };
    let reader = open(&store, reading.clone()).expect("a volume");
    let device = open(&store, Options { size: Some(LEN), ..options() }).expect("it grows");
    let mut content = vec![9; 8192];
    device.read_at(LEN / 2 - 8192, &mut content).expect("within");
    assert!(content[..4096] == [2; 4096] && content[4096..] == [0; 4096]);
    device.discard(0, LEN).expect("within");
    conforms(&device, 3, 300);
    device.close().expect("a store");
    assert_eq!(reader.len(), LEN / 2 - 4096);
    let newer = reader.newer_commit().expect("a store").expect("a newer commit");
    assert_eq!(newer.len(), LEN);
    let smaller = Options { size: Some(LEN / 2), ..options() };
    let error = open(&store, smaller.clone()).expect_err("it does not shrink");
    assert!(error.to_string().contains("shrink"), "{error}");
    drop(open(&store, Options { write: false, ..smaller }).expect("for reading"));
    drop(open(&store, options()).expect("it is free"));
}
