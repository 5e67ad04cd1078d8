//! Tests of several writers of one volume, and of stores that cannot be trusted.

use std::sync::Arc;

use buttress_block::Device;
use buttress_remote::store::simulated::{SimStore, Weather};
use buttress_remote::{Error, Options, Site};

use crate::{create, open, options, store};

const LEN: u64 = 16 << 20;

fn taking() -> Options {
    Options { takeover: true, ..options() }
}

#[test]
fn a_second_writer_is_refused_while_the_first_lives() {
    let store = store(1);
    let first = create(&store, LEN);
    let error = open(&store, options()).expect_err("the first lives");
    assert!(matches!(&error, Error::Busy { here: true, .. }), "{error}");
    assert!(error.to_string().contains("--takeover"), "{error}");
    store.advance_ms(31_000);
    drop(open(&store, options()).expect("the first was not seen for long"));
    first.write_at(0, &[1; 4096]).expect("it does not know yet");
    first.flush().expect_err("the volume was taken");
}

/// The loser of a takeover gets an error at its next commit, and writes nothing afterwards. Its
/// commits stay.
#[test]
fn a_takeover_fences_the_writer_before() {
    let store = store(2);
    let first = create(&store, LEN);
    first.write_at(0, &[1; 4096]).expect("within");
    first.flush().expect("a commit");
    let second = open(&store, taking()).expect("taken over");
    first.write_at(4096, &[2; 4096]).expect("in memory");
    let error = first.flush().expect_err("fenced");
    assert!(format!("{error:?}").contains("Fenced"), "{error:?}");
    first.write_at(0, &[3; 4096]).expect_err("nothing more is written");
    let mut content = [0; 8192];
    second.read_at(0, &mut content).expect("within");
    assert!(content[..4096] == [1; 4096] && content[4096..] == [0; 4096]);
    second.write_at(8192, &[4; 4096]).expect("within");
    second.flush().expect("it has the volume");
    drop(first);
    second.close().expect("it has the volume");
}

/// Writers take a volume from each other while the store fails at random. In the end the volume has
/// all flushed content, and a writer that lost the volume gets an error.
#[test]
fn writers_that_fight_lose_nothing_that_was_flushed() {
    for seed in 0..4 {
        let weather = Weather { refused: 20, lost: 100, ..Weather::default() };
        let store = Arc::new(SimStore::new(seed, Weather::default()));
        drop(create(&store, LEN));
        store.set_weather(weather);
        let durable: Vec<(u64, u8)> = std::thread::scope(|scope| {
            let fight = |own: u64| {
                let store = &store;
                move || {
                    let mut durable = Vec::new();
                    for turn in 0..12_u64 {
                        let Ok(device) = open(store, taking()) else { continue };
                        for step in 0..3 {
                            let slot = (own * 12 + turn) * 3 + step;
                            let content = [slot as u8 + 1; 4096];
                            let is_written = device.write_at(slot * 4096, &content).is_ok();
                            if is_written && device.flush().is_ok() {
                                durable.push((slot, slot as u8 + 1));
                            }
                        }
                    }
                    durable
                }
            };
            let fighters = [scope.spawn(fight(0)), scope.spawn(fight(1))];
            fighters.into_iter().flat_map(|one| one.join().expect("no panic")).collect()
        });
        assert!(!durable.is_empty());
        store.set_weather(Weather::default());
        let last = open(&store, taking()).expect("the last");
        for (slot, byte) in durable {
            let mut content = [0; 4096];
            last.read_at(slot * 4096, &mut content).expect("within");
            assert!(content == [byte; 4096], "seed {seed}: what was flushed to {slot} is lost");
        }
    }
}

/// A store is not written if two of several creations of a name succeed, or if a later creation
/// succeeds.
#[test]
fn a_dishonest_store_is_refused() {
    let store = Arc::new(SimStore::new(1, Weather { dishonest: true, ..Weather::default() }));
    let site = Site::in_store(store.clone(), "v", options());
    let error = site.create(LEN).expect_err("dishonest");
    assert!(matches!(error, Error::Unsafe { .. }), "{error}");
    assert!(!site.has_volume().expect("a store"), "nothing is left");
    store.set_weather(Weather::default());
    drop(create(&store, LEN));
    store.set_weather(Weather { dishonest: true, ..Weather::default() });
    open(&store, options()).expect_err("dishonest by now");
    drop(open(&store, Options { write: false, ..options() }).expect("reading is safe"));
}

#[test]
fn a_volume_is_made_once_and_keeps_its_length() {
    let store = store(1);
    let site = Site::in_store(store.clone(), "v", options());
    let error = site.open().expect_err("none yet");
    assert!(matches!(error, Error::NoVolume { .. }), "{error}");
    drop(create(&store, LEN));
    drop(create(&store, LEN));
    let error = site.create(LEN * 2).expect_err("of another length");
    assert!(matches!(error, Error::OtherSize { found: LEN, .. }), "{error}");
}
