//! A store that is away: reads that give up waiting for it, and writes that go on without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use buttress_base::Interrupt;
use buttress_block::{Device, Error};
use buttress_remote::store::simulated::SimStore;
use buttress_remote::store::watched::{Request, Watched};
use buttress_remote::store::{Store, StoreError};
use buttress_remote::{Options, Site};

use crate::{create, options, store};

const LEN: u64 = 16 << 20;

/// A store that may be away: it answers no request for data, and takes none.
#[derive(Debug)]
struct Away {
    inner: Arc<SimStore>,
    is_away: AtomicBool,
    /// Whether new data objects wait.
    holds: AtomicBool,
    /// Requests that found it away.
    asked: AtomicUsize,
}

impl Watched for Away {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn look(&self, request: Request<'_>) -> Result<(), StoreError> {
        let is_data = |name: &str| name.contains("/data/");
        while matches!(request, Request::Put(name) if is_data(name))
            && self.holds.load(Ordering::SeqCst)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        if matches!(request, Request::Parts(_)) && self.is_away.load(Ordering::SeqCst) {
            self.asked.fetch_add(1, Ordering::SeqCst);
            return Err(StoreError::Failed("it is away".to_owned()));
        }
        Ok(())
    }
}

/// A reader gives up when its program is about to end, although the store stays away. Another
/// reader waits for the same sectors, and gets them when the store is back.
#[test]
fn a_reader_gives_up_and_fails_no_other() {
    let inner = store(1);
    let device = create(&inner, LEN);
    device.write_at(0, &[7; 64 << 10]).expect("within");
    device.close().expect("an honest store");
    let away =
        Arc::new(Away { inner, is_away: false.into(), holds: false.into(), asked: 0.into() });
    let timeout = Duration::from_secs(3600);
    let reading = Options { write: false, timeout, ..options() };
    let device = Site::in_store(away.clone(), "v", reading).open().expect("whole");
    away.is_away.store(true, Ordering::SeqCst);
    let read = |len: usize| {
        let mut buf = vec![0; len];
        device.read_at(0, &mut buf).map(|()| buf)
    };
    let (first, second) = (Interrupt::new(), Interrupt::new());
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let _scope = first.enter_fully();
            read(4096)
        });
        while away.asked.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let waits = scope.spawn(|| {
            let _scope = second.enter_fully();
            read(4096)
        });
        let stays = scope.spawn(|| read(64 << 10));
        // One of them waits for the request of the other one.
        for (token, thread) in [(&second, waits), (&first, asks)] {
            token.raise();
            let error = thread.join().expect("no panic").expect_err("it gave up");
            assert!(matches!(error, Error::Abandoned { .. }), "{error}");
        }
        assert!(away.is_away.load(Ordering::SeqCst) && !stays.is_finished());
        // Work that may change something does not give up.
        let changes = scope.spawn(|| first.run(|| read(4096)));
        away.is_away.store(false, Ordering::SeqCst);
        assert_eq!(changes.join().expect("no panic").expect("it is back"), [7; 4096]);
        assert_eq!(stays.join().expect("no panic").expect("it is back"), vec![7; 64 << 10]);
    });
    device.close().expect("an honest store");
}

/// MB2: a volume has memory for two objects, a local log, and a store that holds the first object.
/// Writes and flushes of four times that memory go on. The store gets all of it later.
#[test]
fn a_held_object_stops_no_writer_with_a_log() {
    let dir = tempfile::tempdir().expect("tempdir");
    let inner = store(1);
    let away =
        Arc::new(Away { inner, is_away: false.into(), holds: false.into(), asked: 0.into() });
    let little = Options {
        object_len: 1 << 20,
        memory: 4 << 20,
        cache_dir: Some(dir.path().to_owned()),
        ..options()
    };
    let device = Site::in_store(away.clone(), "v", little).create(LEN).expect("an honest store");
    away.holds.store(true, Ordering::SeqCst);
    for number in 0..8_u64 {
        device.write_at(number << 20, &vec![number as u8 + 1; 1 << 20]).expect("within");
        device.flush().expect("a good disk");
    }
    away.holds.store(false, Ordering::SeqCst);
    device.close().expect("the store is back");
    let reading = Options { write: false, ..options() };
    let device = Site::in_store(away, "v", reading).open().expect("whole");
    for number in 0..8_u64 {
        let mut found = [0; 4096];
        device.read_at(number << 20, &mut found).expect("whole");
        assert_eq!(found, [number as u8 + 1; 4096]);
    }
}
