//! How often a scrub of a volume in a store waits for the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_fs::{Filesystem, MakeOptions, MountOptions, ScrubOptions};
use buttress_remote::store::simulated::{SimStore, Weather};
use buttress_remote::store::watched::{Request, Watched};
use buttress_remote::store::{Store, StoreError};

use super::{LEN, open, site};
use crate::volume::{file_with, pattern};

/// A store that counts the calls that wait for parts of objects. One call may ask for many parts.
#[derive(Debug)]
struct Counting {
    inner: Arc<SimStore>,
    waits: AtomicU64,
}

impl Watched for Counting {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn look(&self, request: Request<'_>) -> Result<(), StoreError> {
        if let Request::Parts(_) = request {
            self.waits.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// A scrub asks for many nodes and extents at once, so it waits seldom. It finds nothing, and sees
/// all copies.
#[test]
fn a_scrub_of_a_store_waits_seldom() {
    let inner = Arc::new(SimStore::new(1, Weather::default()));
    let device = Arc::new(site(inner.clone(), true).create(LEN).expect("an honest store"));
    let make = MakeOptions { nodesize: 4096, seed: Some(1), ..MakeOptions::default() };
    Filesystem::make(&*device, &make).expect("a volume");
    let fs = open(Arc::clone(&device)).expect("a mount");
    for file in 0..1500 {
        // Each second file is deleted, so that neither data nor nodes lie in one piece.
        drop(file_with(&fs.root(), &format!("f{file}"), &pattern(file, 9000)));
        if file % 100 == 99 {
            fs.sync().expect("a store");
        }
    }
    for file in (0..1500).step_by(2) {
        fs.root().unlink(format!("f{file}").as_bytes()).expect("a file");
    }
    fs.close().expect("a close");
    device.close().expect("a store");
    let store = Arc::new(Counting { inner, waits: AtomicU64::new(0) });
    let mut reading = site(store.clone(), false);
    reading.options.memory = 128 << 20;
    let device = Arc::new(reading.open().expect("a volume"));
    let options = MountOptions::parse("ro").expect("options");
    let fs = Filesystem::open(vec![device], options).expect("a mount");
    let before = store.waits.load(Ordering::SeqCst);
    let (found, is_whole) = fs.scrub(ScrubOptions::default(), &mut |_| true).expect("a scrub");
    assert!(is_whole && !found.has_errors(), "{found:?}");
    let waits = store.waits.load(Ordering::SeqCst) - before;
    let pieces = found.tree_extents_scrubbed + found.data_extents_scrubbed;
    assert!(pieces > 800, "{found:?}");
    assert!(waits * 20 < pieces, "{waits} waits for {pieces} extents");
}
