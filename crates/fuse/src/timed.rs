//! A request with the time at which it came, so that its answer is timed.
//!
//! # What must hold
//!
//! - The time is counted before the answer is sent. So the counts include each answer that a
//!   program has seen.

use std::time::Instant;

use buttress_protocol::{Errno, Head, Opcode, Parts, opcode};

use crate::counts;
use crate::exchange::Exchange;

/// A request that is being worked on since `began`.
pub(crate) struct Timed<X> {
    inner: X,
    opcode: Opcode,
    pub(crate) began: Instant,
    /// The bytes that the request writes to a file.
    written: u64,
}

impl<X: Exchange> Timed<X> {
    /// Starts the clock.
    pub(crate) fn start(inner: X) -> Self {
        let opcode = inner.head().opcode;
        let written = if opcode == opcode::WRITE { inner.parts().payload.len() as u64 } else { 0 };
        Self { inner, opcode, began: Instant::now(), written }
    }
}

impl<X: Exchange> Exchange for Timed<X> {
    type HoldPermit = X::HoldPermit;

    fn head(&self) -> Head {
        self.inner.head()
    }

    fn parts(&self) -> Parts<'_> {
        self.inner.parts()
    }

    fn answer_buffer(&mut self) -> &mut [u8] {
        self.inner.answer_buffer()
    }

    fn answer(self, answer: Result<usize, Errno>) {
        let bytes = match (&answer, self.opcode) {
            (Ok(read), opcode::READ) => *read as u64,
            (Ok(_), _) => self.written,
            (Err(_), _) => 0,
        };
        counts::answered(self.opcode, self.began.elapsed(), bytes);
        self.inner.answer(answer);
    }

    fn dismiss(self) {
        self.inner.dismiss();
    }

    fn hold_permit(&self) -> Option<Self::HoldPermit> {
        self.inner.hold_permit()
    }

    fn order_permit(&self, is_by_root: bool) -> Option<Self::HoldPermit> {
        self.inner.order_permit(is_by_root)
    }

    fn set_aside(self) -> Self {
        Self { inner: self.inner.set_aside(), ..self }
    }
}
