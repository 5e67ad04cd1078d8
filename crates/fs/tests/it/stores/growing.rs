//! A volume in a store grows while it is mounted and written, and the machine loses power at any
//! moment.
//!
//! After each crash the device has its old length or the new one, the file system fits on it, and
//! everything that was acknowledged exists. This includes the new size, and files past the old end.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_format::DeviceId;
use buttress_fs::{Filesystem, MakeOptions, NewInode};
use buttress_remote::store::simulated::Weather;
use buttress_remote::store::timed::{Crash, TimedStore};
use buttress_sim::campaign;

use super::{LEN, REQUEST, check_cut, open, reader, site, stride};
use crate::checker::find_faults;
use crate::volume::{content, list, pattern};

const LONGER: u64 = LEN + (128 << 20);
const ONE: DeviceId = DeviceId(1);
/// The mark of the acknowledged size. A file has its number as the mark.
const GROWN: u64 = 1000;
/// The number of files that are made before the growth, and of all files.
const BEFORE: u64 = 8;
const FILES: u64 = 24;

fn expected(file: u64) -> Vec<u8> {
    pattern(file, 400_000)
}

fn add(fs: &Filesystem, store: &TimedStore, file: u64) {
    let inode =
        fs.root().create(format!("f{file}").as_bytes(), NewInode::file(0o644)).expect("a name");
    inode.write_at(0, &expected(file)).expect("room");
    inode.sync().expect("a store");
    store.mark(file);
}

/// Fills the volume, so that new files lie past the old end of the device.
fn fill(fs: &Filesystem) {
    let whole = fs.root().create(b"filler", NewInode::file(0o644)).expect("a name");
    let piece = vec![7; 1 << 20];
    for at in 0.. {
        if whole.write_at(at << 20, &piece).and_then(|_| whole.sync()).is_err() {
            break;
        }
    }
    fs.sync().expect("a store");
}

fn total(fs: &Filesystem) -> u64 {
    fs.devices()[0].item.total_bytes
}

fn live(store: &Arc<TimedStore>, seed: u64) -> usize {
    let device = Arc::new(site(store.clone(), true).create(LEN).expect("an honest store"));
    let make = MakeOptions { nodesize: 4096, seed: Some(seed), ..MakeOptions::default() };
    Filesystem::make(&*device, &make).expect("a volume");
    let fs = open(Arc::clone(&device)).expect("a mount");
    (0..BEFORE).for_each(|file| add(&fs, store, file));
    fill(&fs);
    let begun = store.events();
    fs.resize_device(ONE, LONGER, &mut |_| true).expect("it grows");
    store.mark(GROWN);
    (BEFORE..FILES).for_each(|file| add(&fs, store, file));
    assert_eq!((total(&fs), fs.devices()[0].len), (LONGER, LONGER));
    assert!(fs.least_device_len(ONE).expect("chunks") > LEN, "nothing lies past the old end");
    fs.close().expect("a close");
    device.close().expect("a store");
    begun
}

fn look(crash: &Crash) -> Result<(), String> {
    check_cut(&reader(crash)?)?;
    let device = site(crash.store.clone(), true).open().map_err(|error| error.to_string())?;
    let device = Arc::new(device);
    let fs = open(Arc::clone(&device))?;
    crash.deliver();
    let (total, len) = (total(&fs), fs.devices()[0].len);
    if ![LEN, LONGER].contains(&total) || total > len {
        return Err(format!("{total} bytes on a device of {len}"));
    }
    if crash.marks.contains(&GROWN) && total != LONGER {
        return Err("the new size was acknowledged, and is lost".to_owned());
    }
    let names = list(&fs.root());
    for file in crash.marks.iter().filter(|mark| **mark < GROWN) {
        let name = format!("f{file}");
        if !names.contains(&name) {
            return Err(format!("{name} is lost"));
        }
        let inode = fs.root().lookup(name.as_bytes()).map_err(|error| error.to_string())?;
        if content(&inode) != expected(*file) {
            return Err(format!("{name} has another content"));
        }
    }
    // The growth that a crash cut short is made again.
    fs.resize_device(ONE, LONGER, &mut |_| true).map_err(|error| error.to_string())?;
    fs.root().create(b"new", NewInode::file(0o644)).map_err(|error| error.to_string())?;
    fs.close().map_err(|error| error.to_string())?;
    device.close().map_err(|error| error.to_string())?;
    find_faults(&reader(crash)?)
}

#[test]
fn a_volume_in_a_store_grows_whole_or_not_at_all() {
    for seed in campaign::seeds(1..2) {
        let store = Arc::new(TimedStore::new(seed, Weather::default(), REQUEST));
        let begun = live(&store, seed);
        let mut states = 0;
        // Every event near the growth is looked at, and a few of the later ones.
        let stride = stride(&store, 40);
        store.crashes(&mut Rng::new(seed), 1, 1, |crash| {
            let is_near = (begun..begun + 60).contains(&crash.event);
            if crash.event < begun || !is_near && !crash.event.is_multiple_of(stride) {
                return;
            }
            states += 1;
            if let Err(what) = look(crash) {
                let Crash { event, draw, marks, .. } = crash;
                panic!("seed {seed}, event {event}, draw {draw}, {:?}: {what}", marks.last());
            }
        });
        campaign::count("states", states);
        assert!(states >= 60, "{states} states");
    }
}
