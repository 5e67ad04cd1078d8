//! Tests of volumes in stores: as devices, after crashes, and with several writers.

mod abandoned;
mod ahead;
mod buckets;
mod collecting;
mod conformance;
mod crashes;
mod disk;
mod fight;
mod following;
mod growing;
mod hostile;
mod local;
#[cfg(all(feature = "az", feature = "s3"))]
mod missing_bucket;
mod server;
mod waits;
mod writers;

use std::sync::Arc;
use std::time::Duration;

use buttress_remote::store::simulated::{SimStore, Weather};
use buttress_remote::{Options, RemoteDevice, Site};

/// Small objects, so that a test has many of them.
fn options() -> Options {
    Options {
        write: true,
        object_len: 64 << 10,
        memory: 16 << 20,
        timeout: Duration::from_secs(20),
        ..Options::default()
    }
}

fn store(seed: u64) -> Arc<SimStore> {
    Arc::new(SimStore::new(seed, Weather::default()))
}

fn create(store: &Arc<SimStore>, len: u64) -> RemoteDevice {
    Site::in_store(store.clone(), "v", options()).create(len).expect("an honest store")
}

fn open(store: &Arc<SimStore>, options: Options) -> buttress_remote::Result<RemoteDevice> {
    Site::in_store(store.clone(), "v", options).open()
}
