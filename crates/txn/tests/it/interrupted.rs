//! A wait for space that is interrupted keeps no space, whatever step it had reached.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Interrupt;
use buttress_block::{Device, Error as DeviceError, Layer, MemoryDevice};
use buttress_format::{Key, Kind, TreeId};
use buttress_fs::make::{MakeOptions, make};
use buttress_txn::{Cost, Engine, EngineOptions, Error, ReserveClass};
use buttress_volume::Volume;

use crate::reservation_cache::engine;

thread_local! {
    /// The number of checks of this thread that find no interruption. The next check finds an
    /// interruption.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// Interrupts a thread at one of its own checks, counted from zero.
pub(crate) fn at_look(number: u32) -> Interrupt {
    LOOKS.set(number);
    Interrupt::asked(
        |_| {
            let left = LOOKS.get();
            LOOKS.set(left.saturating_sub(1));
            left == 0
        },
        0,
    )
}

/// E6: a thread that makes room for itself is interrupted at each step. Afterwards the reservations
/// are unchanged, the queue is empty, and the next request is served. After the last flush step the
/// request is refused, like a request that is not interrupted.
#[test]
fn reservations_survive_interrupts_at_each_step() {
    let engine = engine(160);
    let mut all = Vec::new();
    // Reserves all space that flush steps can free.
    while let Ok(reservation) =
        engine.reserve_in_queue(Cost::of(500, 1 << 20), ReserveClass::Normal)
    {
        all.push(reservation);
        assert!(all.len() < 10_000);
    }
    let before = engine.reservations().accounts();
    let mut looks = 0;
    let refused = loop {
        let wait = || engine.reserve_in_queue(Cost::of(500, 1 << 20), ReserveClass::Normal);
        let outcome = at_look(looks).run(wait).expect_err("there is no room");
        let after = engine.reservations().accounts();
        assert_eq!(
            (after.outstanding, after.waiting),
            (before.outstanding, (0, 0)),
            "look {looks}"
        );
        if !matches!(outcome, Error::Interrupted) {
            break outcome;
        }
        looks += 1;
        assert_eq!(engine.statistics().interrupted, u64::from(looks));
    };
    assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
    assert!(looks > 4, "the thread looks at each step: {looks}");
    // Other threads may wait for requests with priority. So such a request is refused, and not
    // interrupted.
    let wait = || engine.reserve(Cost::of(500, 1 << 20), ReserveClass::Normal);
    let outcome = at_look(0).run(wait).expect_err("there is no room");
    assert!(matches!(outcome, Error::NoSpace(_)), "{outcome}");
    all.pop();
    all.pop();
    let reservation =
        engine.reserve_in_queue(Cost::of(5, 0), ReserveClass::Normal).expect("there is room");
    drop((reservation, all));
    engine.commit().expect("a commit");
    assert_eq!(engine.reservations().accounts().outstanding, Cost::default());
}

/// A device with flushes that wait. When the test lets a flush go on, the test may also make the
/// flush fail.
#[derive(Debug)]
struct Held {
    below: MemoryDevice,
    is_held: AtomicBool,
    waits: AtomicBool,
    fails: AtomicBool,
}

impl Layer for Held {
    type Inner = MemoryDevice;

    fn inner(&self) -> &Self::Inner {
        &self.below
    }

    fn on_flush(&self) -> Result<(), DeviceError> {
        while self.is_held.load(Ordering::SeqCst) {
            self.waits.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        match self.fails.load(Ordering::SeqCst) {
            // A write past the end, which fails.
            true => self.below.write_at(u64::MAX, &[0]),
            false => self.below.flush(),
        }
    }
}

/// A thread that waits for a commit under way leaves when it is interrupted. It makes no commit of
/// its own if the next commit is enough. If the next commit fails, the thread gets the error.
#[test]
fn a_commit_is_waited_for_while_it_is_wanted() {
    for fails in [false, true] {
        let below = MemoryDevice::new(160 << 20);
        make(&below, &MakeOptions { seed: Some(1), ..MakeOptions::default() }).expect("a volume");
        let [is_held, waits, fails_now] = [(); 3].map(|()| AtomicBool::new(false));
        let device = Arc::new(Held { below, is_held, waits, fails: fails_now });
        let options = buttress_volume::OpenOptions { writable: true, ..Default::default() };
        let opened = Volume::open(vec![Arc::clone(&device) as _], options);
        let (volume, superblock) = opened.expect("a volume");
        let engine = Engine::open(Arc::new(volume), superblock, EngineOptions::default());
        let engine = engine.expect("it opens");
        let change = || {
            let reservation =
                engine.reserve(Cost::of(5, 500), ReserveClass::Normal).expect("there is room");
            let handle = engine.begin(reservation);
            handle.put(TreeId::FS, Key::new(300, Kind::XATTR_ITEM, 0), vec![7; 100]);
        };
        change();
        device.is_held.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let commit = scope.spawn(|| engine.commit());
            while !device.waits.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let (gone, stays) = (Interrupt::new(), Interrupt::new());
            let wait = |interrupt: &Interrupt| interrupt.run(|| engine.commit_while_wanted());
            gone.raise();
            assert!(matches!(wait(&gone), Err(Error::Interrupted)));
            let waits = scope.spawn(move || wait(&stays));
            std::thread::sleep(std::time::Duration::from_millis(20));
            device.fails.store(fails, Ordering::SeqCst);
            device.is_held.store(false, Ordering::SeqCst);
            let (commit, waits) = (commit.join(), waits.join());
            assert_eq!(commit.expect("no panic").is_err(), fails);
            let waits = waits.expect("no panic");
            assert_eq!(waits.is_err(), fails, "{waits:?}");
            assert!(!fails || matches!(waits, Err(Error::Aborted(_))), "{waits:?}");
        });
    }
}
