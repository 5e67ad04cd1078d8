//! Reads that give up waiting for a store that is away.

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

/// A store that may be away: it answers no request for data.
#[derive(Debug)]
struct Away {
    inner: Arc<SimStore>,
    is_away: AtomicBool,
    /// Requests that found it away.
    asked: AtomicUsize,
}

impl Watched for Away {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn look(&self, request: Request<'_>) -> Result<(), StoreError> {
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
    let away = Arc::new(Away { inner, is_away: false.into(), asked: 0.into() });
    let patience = Duration::from_secs(3600);
    let reading = Options { write: false, patience, ..options() };
    let device = Site::in_store(away.clone(), "v", reading).open().expect("whole");
    away.is_away.store(true, Ordering::SeqCst);
    let read = |len: usize| {
        let mut buf = vec![0; len];
        device.read_at(0, &mut buf).map(|()| buf)
    };
    let (first, second) = (Interrupt::new(), Interrupt::new());
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let _heeding = first.heed_fully();
            read(4096)
        });
        while away.asked.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let waits = scope.spawn(|| {
            let _heeding = second.heed_fully();
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
        let changes = scope.spawn(|| first.heeded(|| read(4096)));
        away.is_away.store(false, Ordering::SeqCst);
        assert_eq!(changes.join().expect("no panic").expect("it is back"), [7; 4096]);
        assert_eq!(stays.join().expect("no panic").expect("it is back"), vec![7; 64 << 10]);
    });
    device.close().expect("an honest store");
}
