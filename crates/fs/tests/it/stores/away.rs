//! A store that is away for a while: what waits for it can be interrupted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use buttress_fs::{ErrorKind, Filesystem, Interrupt, MakeOptions};
use buttress_remote::store::simulated::{SimStore, Weather};
use buttress_remote::store::watched::{Request, Watched};
use buttress_remote::store::{Store, StoreError};

use super::{LEN, open, site};
use crate::volume::{file_with, pattern};

/// A store that may be away: it answers no request for data.
#[derive(Debug)]
struct Away {
    inner: SimStore,
    is_away: AtomicBool,
    asked: AtomicUsize,
}

impl Watched for Away {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    fn look(&self, request: Request<'_>) -> Result<(), StoreError> {
        if matches!(request, Request::Parts(_)) && self.is_away.load(Ordering::SeqCst) {
            self.asked.fetch_add(1, Ordering::SeqCst);
            return Err(StoreError::Failed("it is away".to_owned()));
        }
        Ok(())
    }
}

/// Programs read files while the store is away, and are killed. Their reads end as interrupted, and
/// no failure of the device is counted. The volume stays writable, and the other reader of the same
/// file gets its bytes when the store is back.
#[test]
fn readers_that_are_interrupted_cost_nothing() {
    for direct in [false, true] {
        let inner = SimStore::new(1, Weather::default());
        let store = Arc::new(Away { inner, is_away: false.into(), asked: 0.into() });
        let device = site(store.clone(), true).create(LEN).expect("an honest store");
        Filesystem::make(&device, &MakeOptions::default()).expect("a volume");
        device.close().expect("a store");
        let open = || {
            let device = Arc::new(site(store.clone(), true).open().expect("whole"));
            (open(Arc::clone(&device)).expect("a mount"), device)
        };
        let content = pattern(3, 3 << 20);
        let (fs, device) = open();
        file_with(&fs.root(), "file", &content);
        fs.close().expect("a store");
        device.close().expect("a store");
        let (fs, device) = open();
        let file = fs.root().lookup(b"file").expect("it is there");
        store.is_away.store(true, Ordering::SeqCst);
        let read = |at: u64, len: usize| {
            let mut buf = vec![0; len];
            let read =
                if direct { file.read_direct(at, &mut buf) } else { file.read_at(at, &mut buf) };
            read.map(|len| buf[..len].to_vec())
        };
        let tokens = [Interrupt::new(), Interrupt::new(), Interrupt::new()];
        std::thread::scope(|scope| {
            let stays = scope.spawn(|| read(0, 1 << 20));
            while store.asked.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let (read, lens) = (&read, [4096, 100_000, 1 << 20]);
            let killed: Vec<_> = tokens
                .iter()
                .zip(lens)
                .map(|(token, len)| {
                    scope.spawn(move || {
                        let _heeding = token.heed_fully();
                        read(0, len)
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(100));
            for (token, thread) in tokens.iter().zip(killed) {
                token.raise();
                let error = thread.join().expect("no panic").expect_err("it was interrupted");
                assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
            }
            assert!(!stays.is_finished());
            store.is_away.store(false, Ordering::SeqCst);
            let found = stays.join().expect("no panic").expect("the store is back");
            assert!(found == content[..1 << 20]);
        });
        assert!(read(0, 3 << 20).expect("the store is back") == content);
        let stats = fs.io_stats();
        assert_eq!((stats.io_failures, stats.csum_failures), (0, 0));
        file.write_at(0, b"new").expect("it is writable");
        drop(file);
        fs.close().expect("it is writable");
        device.close().expect("a store");
    }
}
