//! The log while another thread holds it: what it then lacks is never undone.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use buttress_block::{Device, MemoryDevice};

use crate::device::RemoteDevice;
use crate::open::Site;
use crate::options::Options;
use crate::store::simulated::{SimStore, Weather};

const LEN: u64 = 4 << 20;

fn site(store: &Arc<SimStore>, dir: &Path) -> Site {
    let options = Options {
        write: true,
        object_len: 64 << 10,
        memory: 16 << 20,
        max_lag: Duration::from_secs(3600),
        cache_dir: Some(dir.to_owned()),
        ..Options::default()
    };
    Site::in_store(store.clone(), "v", options)
}

fn begun(dir: &Path) -> (Arc<SimStore>, RemoteDevice) {
    let store = Arc::new(SimStore::new(1, Weather::default()));
    let device = site(&store, dir).create(LEN).expect("an honest store");
    (store, device)
}

fn sector(device: &dyn Device, at: u64) -> u8 {
    let mut found = [0; 4096];
    device.read_at(at * 4096, &mut found).expect("within");
    assert!(found.iter().all(|&byte| byte == found[0]), "one write made the sector {at}");
    found[0]
}

/// J5: a commit has a write that the log lacks, since the log was held when the commit was made.
/// Neither the replay nor the salvage puts an older record over it.
#[test]
fn an_older_record_never_undoes_what_a_commit_has() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (store, device) = begun(dir.path());
    let write = |at: u64, byte: u8| device.write_at(at * 4096, &[byte; 4096]).expect("within");
    write(0, 1);
    write(2, 9);
    device.flush().expect("a good disk");
    write(0, 2);
    device.discard(2 * 4096, 4096).expect("within");
    std::thread::scope(|scope| {
        // As another flush does while it waits for the disk.
        let held = device.core.log.get().expect("it has a log").inside.lock();
        let pushing = scope.spawn(|| device.push());
        let is_behind = || {
            let state = device.core.state.lock();
            state.committed < state.position
        };
        while is_behind() {
            std::thread::yield_now();
        }
        drop(held);
        pushing.join().expect("no panic").expect("a good store");
    });
    write(1, 3);
    device.flush().expect("a good disk");
    device.abandon();
    drop(device);
    let target = Arc::new(MemoryDevice::new(LEN));
    let made = target.clone();
    site(&store, dir.path()).salvage(|_| Ok(made), &|_| ()).expect("a log");
    assert_eq!([0, 1, 2].map(|at| sector(&*target, at)), [2, 3, 0], "what was salvaged");
    store.advance_ms(60_000);
    let device = site(&store, dir.path()).open().expect("the log fits");
    assert_eq!([0, 1, 2].map(|at| sector(&device, at)), [2, 3, 0], "what was replayed");
}
