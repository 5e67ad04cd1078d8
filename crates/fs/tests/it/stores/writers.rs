//! Writers that take a volume from each other while a reader follows and garbage is collected.
//!
//! The files that a writer acknowledged survive every later crash and takeover. A reader shows a
//! whole commit, or gets an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Rng;
use buttress_fs::{Filesystem, MountOptions, NewInode};
use buttress_remote::store::simulated::Weather;
use buttress_remote::store::timed::{Crash, TimedStore};
use buttress_sim::campaign;

use super::{LEN, REQUEST, check_cut, open, reader, site, stride};
use crate::volume::{content, list, pattern};

/// How many writers take the volume, one after the other, and the most files of each writer.
const TURNS: u64 = 4;
const FILES: u64 = 40;

fn expected(turn: u64, file: u64) -> Vec<u8> {
    pattern(turn * FILES + file, 3000 + 611 * (file as usize % 9))
}

fn name(turn: u64, file: u64) -> String {
    format!("f{turn}-{file}")
}

/// Writes files and syncs each file, until another writer takes the volume. Each acknowledged file
/// has a mark.
fn work(store: &Arc<TimedStore>, turn: u64, may_end: &AtomicBool) {
    let device = Arc::new(site(store.clone(), true).open().expect("a volume"));
    let Ok(fs) = open(Arc::clone(&device)) else { return };
    for file in 0..FILES {
        let write = || -> Result<(), String> {
            let words = |error: buttress_fs::Error| error.to_string();
            let inode = fs.root().create(name(turn, file).as_bytes(), NewInode::file(0o644));
            let inode = inode.map_err(words)?;
            inode.write_at(0, &expected(turn, file)).map_err(words)?;
            inode.sync().map_err(words)
        };
        if write().is_err() {
            break;
        }
        store.mark(turn * FILES + file);
        if file % 6 == 5 {
            let _ = device.collect();
        }
        if file % 15 == 14 {
            let _ = device.checkpoint();
        }
        if file == 10 {
            may_end.store(true, Ordering::SeqCst);
        }
    }
    may_end.store(true, Ordering::SeqCst);
    let _ = fs.close();
    let _ = device.close();
}

/// Checks that each existing file has its content, and that no file of `marks` is missing.
fn whole(fs: &Filesystem, marks: &[u64]) -> Result<(), String> {
    let names = list(&fs.root());
    for (turn, file) in (0..TURNS).flat_map(|turn| (0..FILES).map(move |file| (turn, file))) {
        let is_marked = marks.contains(&(turn * FILES + file));
        let name = name(turn, file);
        if !names.contains(&name) {
            if is_marked {
                return Err(format!("{name} is lost"));
            }
            continue;
        }
        let inode = fs.root().lookup(name.as_bytes()).map_err(|error| error.to_string())?;
        let (found, right) = (content(&inode), expected(turn, file));
        // A file that was not acknowledged may have a name without its content.
        if found != right && (is_marked || !right.starts_with(&found)) {
            return Err(format!("{name} has {} bytes of another content", found.len()));
        }
    }
    Ok(())
}

/// Looks at newer and newer commits until the writers have ended. Errors are allowed, because the
/// collector may delete objects that the reader still needs.
fn follow(store: &Arc<TimedStore>, is_over: &AtomicBool) -> usize {
    let mut seen = 0;
    while !is_over.load(Ordering::SeqCst) {
        let Ok(device) = site(store.clone(), false).open() else { continue };
        let options = MountOptions::parse("ro,nologreplay").expect("options");
        let Ok(fs) = Filesystem::open(vec![Arc::new(device)], options) else { continue };
        for _ in 0..5 {
            let names = list(&fs.root());
            for name in names.iter().filter_map(|name| name.strip_prefix('f')) {
                let parts = name.split_once('-').map(|(turn, file)| (turn.parse(), file.parse()));
                let Some((Ok(turn), Ok(file))) = parts else { continue };
                let Ok(inode) = fs.root().lookup(format!("f{name}").as_bytes()) else { continue };
                let (right, mut found) = (expected(turn, file), vec![0; 20_000]);
                let Ok(len) = inode.read_at(0, &mut found) else { continue };
                assert!(right.starts_with(&found[..len]), "f{name} has another content");
                seen += 1;
            }
            let _ = fs.renew();
        }
    }
    seen
}

#[test]
fn writers_that_take_a_store_keep_what_others_synced() {
    for seed in campaign::seeds(1..2) {
        let store = Arc::new(TimedStore::new(seed, Weather::default(), REQUEST));
        let device = site(store.clone(), true).create(LEN).expect("an honest store");
        Filesystem::make(&device, &buttress_fs::MakeOptions::default()).expect("a volume");
        device.close().expect("a store");
        let begun = store.events();
        let is_over = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let reads = scope.spawn(|| follow(&store, &is_over));
            let mut writers = Vec::new();
            for turn in 0..TURNS {
                let may_end = Arc::new(AtomicBool::new(false));
                let (store, ends) = (&store, Arc::clone(&may_end));
                writers.push(scope.spawn(move || work(store, turn, &ends)));
                while !may_end.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            }
            writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
            is_over.store(true, Ordering::SeqCst);
            reads.join().expect("no panic")
        });
        campaign::count("reads", seen);
        let mut rng = Rng::new(seed);
        let shown = store.crashes(&mut rng, 1, stride(&store, 12), |crash| {
            if crash.event < begun {
                return;
            }
            if let Err(what) = look(crash) {
                let Crash { event, draw, marks, .. } = crash;
                panic!("seed {seed}, event {event}, draw {draw}, {marks:?}: {what}");
            }
        });
        campaign::count("states", shown);
    }
}

fn look(crash: &Crash) -> Result<(), String> {
    check_cut(&reader(crash)?)?;
    let device = site(crash.store.clone(), true).open().map_err(|error| error.to_string())?;
    let device = Arc::new(device);
    let fs = open(Arc::clone(&device))?;
    crash.deliver();
    whole(&fs, &crash.marks)?;
    fs.root().create(b"new", NewInode::file(0o644)).map_err(|error| error.to_string())?;
    fs.close().map_err(|error| error.to_string())?;
    device.close().map_err(|error| error.to_string())?;
    crate::checker::find_faults(&reader(crash)?)
}
