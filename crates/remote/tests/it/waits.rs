//! How often an opening waits for the store, one request after the other.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use buttress_base::{seeded, thread};
use buttress_block::Device;
use buttress_remote::store::simulated::SimStore;
use buttress_remote::store::watched::{Request, Watched};
use buttress_remote::store::{Store, StoreError};
use buttress_remote::{Options, Site};

use crate::{create, options, store};

/// A store where each request takes a while. It counts the waits of the longest chain of requests.
/// A request continues a chain if it began after the last request of the chain had ended.
#[derive(Debug)]
struct Waits {
    inner: Arc<SimStore>,
    longest: Mutex<u32>,
    requests: Mutex<Vec<String>>,
}

impl Waits {
    fn new(inner: &Arc<SimStore>) -> Arc<Self> {
        let (longest, requests) = (Mutex::default(), Mutex::default());
        Arc::new(Self { inner: inner.clone(), longest, requests })
    }
}

impl Watched for Waits {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn look(&self, request: Request<'_>) -> Result<(), StoreError> {
        self.requests.lock().expect("no panic").push(format!("{request:?}"));
        let chain = *self.longest.lock().expect("no panic") + 1;
        thread::sleep(Duration::from_millis(80));
        let mut longest = self.longest.lock().expect("no panic");
        *longest = chain.max(*longest);
        Ok(())
    }
}

/// Runs work in simulated time: requests take a while, and nothing else takes any.
fn simulated<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let options = seeded::Options { leaps: false, ..seeded::Options::default() };
    seeded::run(1, options, work).expect("it goes on").0
}

/// The waits of one opening.
fn waits(inner: &Arc<SimStore>, write: bool) -> u32 {
    let waits = Waits::new(inner);
    simulated(move || {
        let options = Options { write, ..options() };
        let device = Site::in_store(waits.clone(), "v", options).open().expect("a volume");
        let count = *waits.longest.lock().expect("no panic");
        device.close().expect("a store");
        count
    })
}

/// A reader waits for the list, the manifest, and the parts of the map. A writer also waits for the
/// trial of the store, and for its own manifest. Objects since the checkpoint cost one more wait,
/// for the pages that they change.
#[test]
fn an_opening_waits_seldom() {
    let store = store(1);
    let device = create(&store, 512 << 20);
    for page in 0..8 {
        device.write_at(page * (64 << 20), &[7; 300 << 10]).expect("within");
    }
    device.checkpoint().expect("a store");
    device.close().expect("a store");
    assert!(waits(&store, false) <= 3);
    assert!(waits(&store, true) <= 7);
    let device = crate::open(&store, options()).expect("free");
    for page in 0..8 {
        device.write_at(page * (64 << 20) + 4096, &[8; 4096]).expect("within");
    }
    device.close().expect("a store");
    assert!(waits(&store, false) <= 4);
    assert!(waits(&store, true) <= 7);
}

/// A clone makes seven requests, and waits for five of them, one after the other. The clone first
/// creates its pin at the source, then reads the source's manifest again, then creates its own
/// manifest.
#[test]
fn a_clone_makes_few_requests() {
    let store = store(2);
    create(&store, 64 << 20).close().expect("a store");
    let waits = Waits::new(&store);
    let of = Arc::clone(&waits);
    simulated(move || {
        let site = |prefix: &str| Site::in_store(of.clone(), prefix, options());
        site("v").clone_to(&site("a")).expect("a store");
    });
    let requests = waits.requests.lock().expect("no panic");
    assert_eq!(requests.len(), 7, "{requests:?}");
    let starts = ["Create(\"v/pin/", "Get(\"v/manifest/", "Create(\"a/m"];
    for (start, request) in starts.iter().zip(&requests[4..]) {
        assert!(request.starts_with(start), "{requests:?}");
    }
    let longest = *waits.longest.lock().expect("no panic");
    assert!(longest <= 5, "{longest}");
}
