//! A store that is away for a while: what waits for it can be interrupted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use buttress_block::Device;
use buttress_fs::{
    Error, ErrorKind, Filesystem, Interrupt, MakeOptions, MountOptions, NameError, NewInode,
};
use buttress_remote::store::simulated::{SimStore, Weather};
use buttress_remote::store::watched::{Request, Watched};
use buttress_remote::store::{Store, StoreError};
use buttress_remote::{Options, RemoteDevice, Site};

use super::{LEN, open, site};
use crate::checker::check;
use crate::volume::{file_with, pattern};

const ABSENT: ErrorKind = ErrorKind::Name(NameError::NotFound);

/// A store that may be away: it answers no request for data, and takes no new objects.
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
        let is_barred = matches!(request, Request::Parts(_) | Request::Put(_) | Request::Create(_));
        if is_barred && self.is_away.load(Ordering::SeqCst) {
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
                        let _scope = token.enter_fully();
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

/// How many names the directory has in which programs change something.
const NAMES: u64 = 2000;

/// A name of that directory. Long names make many nodes, so that most of them are not in memory.
fn name(number: u64) -> Vec<u8> {
    format!("{number:04}-{}", "n".repeat(120)).into_bytes()
}

/// A volume in a store that may be away for long, and its device.
fn open_retrying(store: &Arc<Away>, mount: &str) -> (Filesystem, Arc<RemoteDevice>) {
    let options = Options {
        write: true,
        takeover: true,
        object_len: 64 << 10,
        memory: 16 << 20,
        timeout: Duration::from_secs(60),
        ..Options::default()
    };
    let site = Site::in_store(store.clone(), "v", options);
    let device = Arc::new(site.open().expect("whole"));
    let options = MountOptions::parse(mount).expect("options");
    let opened = Filesystem::open(vec![Arc::clone(&device) as Arc<dyn Device>], options);
    (opened.expect("a mount"), device)
}

/// Runs work that has to wait for the store, and kills its program after a while. Returns the
/// result of the work, and notes in `faults` if it did not wait, or waited on.
fn killed<R: Send>(
    what: &str,
    faults: &mut Vec<String>,
    work: impl FnOnce(&Interrupt) -> R + Send,
) -> R {
    let token = Interrupt::new();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _scope = token.enter_fully();
            work(&token)
        });
        std::thread::sleep(Duration::from_millis(400));
        if thread.is_finished() {
            faults.push(format!("{what}: it does not wait for the store"));
        }
        token.raise();
        let since = Instant::now();
        let result = thread.join().expect("no panic");
        if since.elapsed() > Duration::from_secs(20) {
            faults.push(format!("{what}: it waited on"));
        }
        result
    })
}

/// As [`killed`], for work that has to fail.
fn interrupted(
    what: &str,
    faults: &mut Vec<String>,
    work: &(dyn Fn() -> Result<(), Error> + Sync),
) {
    let done = killed(what, faults, |_| work());
    if done.as_ref().map_err(Error::kind) != Err(ErrorKind::Interrupted) {
        faults.push(format!("{what}: {done:?}"));
    }
}

/// Programs change something while the store is away, and are killed. What only had to be read for
/// the change is not changed. What has to finish does so when the store is back: a sync, and the
/// data of a writer over the limit of dirty data. The volume stays writable.
#[test]
fn writers_that_are_interrupted_cost_nothing() {
    let inner = SimStore::new(2, Weather::default());
    let store = Arc::new(Away { inner, is_away: false.into(), asked: 0.into() });
    let device = site(store.clone(), true).create(LEN).expect("an honest store");
    Filesystem::make(&device, &MakeOptions { nodesize: 4096, ..MakeOptions::default() })
        .expect("a volume");
    device.close().expect("a store");
    let mount = "rw,noatime,commit=3000,dirty=1M";
    let (fs, device) = open_retrying(&store, mount);
    // What the next opening reads lies in later objects.
    let content = pattern(4, 3 << 20);
    file_with(&fs.root(), "file", &content);
    fs.sync().expect("a store");
    let dir = fs.root().mkdir(b"dir", 0o755, 0, 0).expect("space");
    for number in 0..NAMES {
        dir.create(&name(number), NewInode::file(0o644)).expect("space");
    }
    fs.root().create(b"written", NewInode::file(0o644)).expect("space");
    drop(dir);
    fs.close().expect("a store");
    device.close().expect("a store");

    let (fs, device) = open_retrying(&store, mount);
    let (root, file) = (fs.root(), fs.root().lookup(b"file").expect("it is there"));
    let dir = root.lookup(b"dir").expect("it is there");
    let written = root.lookup(b"written").expect("it is there");
    store.is_away.store(true, Ordering::SeqCst);
    let mut faults = Vec::new();
    let new = || dir.create(b"5-new", NewInode::file(0o644)).map(drop);
    interrupted("create", &mut faults, &new);
    let unlink = || dir.unlink(&name(NAMES / 2)).map(drop);
    interrupted("unlink", &mut faults, &unlink);
    interrupted("a write to a part of a sector", &mut faults, &|| {
        file.write_at(1_000_001, b"new").map(drop)
    });
    let mut accepted = 0;
    killed("a write over the limit", &mut faults, |token| {
        while !token.is_raised() {
            let at = accepted * 65_536;
            accepted += 1;
            written.write_at(at, &[accepted as u8; 65_536]).expect("it is in memory");
        }
    });
    interrupted("fsync", &mut faults, &|| written.sync());
    interrupted("sync", &mut faults, &|| fs.sync());
    store.is_away.store(false, Ordering::SeqCst);
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(dir.lookup(b"5-new").expect_err("absent").kind(), ABSENT);
    dir.lookup(&name(NAMES / 2)).expect("it is there");
    fs.sync().expect("the store is back");
    for at in 0..accepted {
        let mut found = [0; 65_536];
        written.read_at(at * 65_536, &mut found).expect("it was written");
        assert!(found == [(at + 1) as u8; 65_536], "{at}");
    }
    let stats = fs.io_stats();
    assert_eq!((stats.io_failures, stats.csum_failures), (0, 0));
    let mut found = vec![0; content.len()];
    assert_eq!(file.read_at(0, &mut found).expect("it is there"), content.len());
    assert!(found == content);
    new().expect("it is writable");
    unlink().expect("it is writable");
    drop((root, file, dir, written));
    fs.close().expect("it is writable");
    device.close().expect("a store");
    let device: Arc<dyn Device> = Arc::new(site(store, false).open().expect("whole"));
    check(&device);
}
