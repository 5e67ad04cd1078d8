//! Cancelled work: a caller that waits for space gives up, and keeps no space.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use buttress_base::Rng;
use buttress_fs::{ErrorKind, FallocateMode, Filesystem, Interrupt, NewInode, SetAttr};

use crate::checker::check;
use crate::room::{GateState, fill, held};
use crate::volume::{file_with, memory, mount_with};

const MIB: usize = 1 << 20;

/// Waits until `count` requests wait in the queue for data.
fn wait_for_line(fs: &Filesystem, count: usize) {
    while fs.space_stats().accounts.waiting.0 < count {
        std::thread::yield_now();
    }
}

/// E6: callers wait for space that a commit frees, and the device holds the commit back. A
/// cancelled caller returns during that time, with nothing written and nothing reserved. The other
/// callers are served when the commit ends.
#[test]
fn interrupted_callers_leave_while_a_commit_stands_still() {
    let (below, held, fs) = held(160);
    let _filler = fill(&fs, 8 << 20);
    let files: Vec<_> = (0..3).map(|i| file_with(&fs.root(), &format!("f{i}"), b"")).collect();
    let interrupts: Vec<_> = files.iter().map(|_| Interrupt::new()).collect();
    held.hook.set(GateState::Closed);
    std::thread::scope(|scope| {
        scope.spawn(|| fs.sync().expect("durable"));
        held.hook.wait_until_reached();
        let before = fs.space_stats();
        let writers: Vec<_> = files
            .iter()
            .zip(&interrupts)
            .map(|(file, interrupt)| {
                scope.spawn(move || interrupt.run(|| file.write_at(0, &[1; 6 * MIB])))
            })
            .collect();
        wait_for_line(&fs, 3);
        let mut ends = writers.into_iter().zip(&interrupts);
        for _ in 0..2 {
            let (writer, interrupt) = ends.next().expect("three");
            interrupt.raise();
            let error = writer.join().expect("no panic").expect_err("it was interrupted");
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        }
        let after = fs.space_stats();
        assert_eq!(after.accounts.waiting.0, 1, "one stays");
        assert_eq!(after.accounts.data.may_use, before.accounts.data.may_use);
        let refused = after.engine.enospc - before.engine.enospc;
        assert_eq!((after.engine.interrupted, refused), (2, 0));
        held.hook.set(GateState::Open);
        let (writer, _) = ends.next().expect("three");
        writer.join().expect("no panic").expect("there is room behind the commit");
    });
    let sizes: Vec<_> = files.iter().map(|file| file.attr().size).collect();
    assert_eq!(sizes, [0, 0, 6 * MIB as u64]);
    // A cancellation ends with its work, so the next work of the thread is not cancelled.
    files[0].write_at(0, &[1; MIB]).expect("there is room");
    fs.close().expect("it closes");
    check(&below);
}

/// If a commit fails, each caller that waits for it gets the error, whether or not the caller can
/// be cancelled.
#[test]
fn a_commit_that_fails_is_not_waited_for() {
    let (_, held, fs) = held(160);
    let _filler = fill(&fs, 8 << 20);
    let how = FallocateMode::Allocate { keep_size: false };
    let file = file_with(&fs.root(), "file", b"");
    held.hook.set(GateState::Closed);
    std::thread::scope(|scope| {
        scope.spawn(|| fs.sync().expect_err("the device fails"));
        held.hook.wait_until_reached();
        let waits = scope.spawn(|| Interrupt::new().run(|| file.fallocate(0, 6 << 20, how)));
        wait_for_line(&fs, 1);
        held.hook.set(GateState::Failing);
        let error = waits.join().expect("no panic").expect_err("the volume is read-only");
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    });
    drop(file);
    fs.close().expect_err("it cannot commit");
}

thread_local! {
    /// The number of checks of this thread that find no interruption. The next check finds one.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// Interrupts this thread at its check `number`, counted from zero.
pub(crate) fn at_look(number: u32) -> Interrupt {
    LOOKS.set(number);
    let ask = |_| {
        let left = LOOKS.get();
        LOOKS.set(left.saturating_sub(1));
        left == 0
    };
    Interrupt::asked(ask, 0)
}

/// E6: on a full volume, writes, allocations and new names are interrupted, each at a random wait.
/// An operation succeeds, is refused, or is interrupted. Debug builds check at each commit that
/// accounts agree with tokens. At the end the space can be freed and used.
#[test]
fn operations_survive_interrupts_anywhere() {
    for rule in ["off", "clamp", "clamp,reserve=levels"] {
        let device = memory(160);
        let fs = mount_with(&device, &format!("preempt={rule},dirty=8M"));
        let filler = fill(&fs, 3 << 20);
        let interrupted = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..6_u64 {
                let (fs, interrupted) = (fs.clone(), &interrupted);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    for round in 0..60 {
                        let interrupt = at_look(rng.below(4) as u32);
                        let name = format!("f{thread}-{}", round % 8);
                        let (choice, at) = (rng.below(4), rng.below(16) << 16);
                        let outcome = interrupt.run(|| {
                            let root = fs.root();
                            let file = match root.lookup(name.as_bytes()) {
                                Ok(file) => file,
                                Err(_) => root.create(name.as_bytes(), NewInode::file(0o644))?,
                            };
                            match choice {
                                0 => file.write_direct(at, &[2; 64 << 10]).map(drop),
                                1 => file.fallocate(
                                    at,
                                    1 << 20,
                                    FallocateMode::Allocate { keep_size: false },
                                ),
                                _ => file.write_at(at, &[1; 256 << 10]).map(drop),
                            }
                        });
                        match outcome.map_err(|error| error.kind()) {
                            Ok(()) | Err(ErrorKind::NoSpace) => {}
                            Err(ErrorKind::Interrupted) => {
                                interrupted.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(other) => panic!("{rule}, {thread}, {round}: {other:?}"),
                        }
                        if rng.chance(1, 6) {
                            // An operation that frees space is not interrupted, because other
                            // operations wait for the space.
                            let gone = Interrupt::new();
                            gone.raise();
                            let removed = gone.run(|| fs.root().unlink(name.as_bytes()));
                            let kind = removed.map_err(|error| error.kind());
                            assert!(!matches!(kind, Err(ErrorKind::Interrupted)), "{kind:?}");
                        }
                    }
                });
            }
        });
        assert!(interrupted.load(Ordering::Relaxed) > 0, "{rule}: no request was interrupted");
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        filler.set_attr(&empty).expect("shrinking always works");
        fs.sync().expect("durable");
        let accounts = fs.space_stats().accounts;
        assert_eq!((accounts.waiting, accounts.data.may_use), ((0, 0), 0), "{rule}");
        file_with(&fs.root(), "behind", &vec![3; 8 * MIB]);
        fs.close().expect("it closes");
        check(&device);
    }
}
