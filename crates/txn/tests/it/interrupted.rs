//! Who waits for space and is interrupted leaves nothing behind, at whatever step that is.

use std::cell::Cell;

use buttress_base::Interrupt;
use buttress_txn::{Cost, Costs, Error, Urgency};

use crate::credit::engine;

thread_local! {
    /// How often this thread may look before it finds itself interrupted.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// Interrupts a thread at a look of its own, counted from zero.
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

/// E6: at each step of one who makes room for himself, the promises are what they were, nobody is in the line, and the next
/// one is served. At the end of the ladder he is refused, as one whom nobody interrupts.
#[test]
fn e6_interrupted_at_each_step() {
    let engine = engine(160);
    let mut all = Vec::new();
    // What a ladder can give is given.
    while let Ok(promise) = engine.reserve_in_line(Cost::of(500, 1 << 20), Urgency::Normal) {
        all.push(promise);
        assert!(all.len() < 10_000);
    }
    let before = engine.accounts();
    let mut looks = 0;
    let refused = loop {
        let wait = || engine.reserve_in_line(Cost::of(500, 1 << 20), Urgency::Normal);
        let outcome = at_look(looks).heeded(wait).expect_err("there is no room");
        let after = engine.accounts();
        assert_eq!((after.promised, after.waiting), (before.promised, (0, 0)), "look {looks}");
        if !matches!(outcome, Error::Interrupted) {
            break outcome;
        }
        looks += 1;
        assert_eq!(engine.statistics().interrupted, u64::from(looks));
    };
    assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
    assert!(looks > 4, "he looks at each step: {looks}");
    // On those with priority others wait: they are refused, and not interrupted.
    let wait = || engine.reserve(Cost::of(500, 1 << 20), Urgency::Normal);
    let outcome = at_look(0).heeded(wait).expect_err("there is no room");
    assert!(matches!(outcome, Error::NoSpace(_)), "{outcome}");
    all.pop();
    all.pop();
    let promise = engine.reserve_in_line(Cost::of(5, 0), Urgency::Normal).expect("there is room");
    drop((promise, all));
    engine.commit().expect("a commit");
    assert_eq!(engine.accounts().promised, Costs::default());
}
