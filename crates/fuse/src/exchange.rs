//! One request, and how its answer is sent, whichever transport brought it.
//!
//! # What must hold
//!
//! - A transport knows no operation. The dispatcher knows no transport.
//! - Each request is answered once (`front_end::D1`). If a request is dropped, the transport
//!   answers it with `EIO`.

use buttress_protocol::{Errno, Head, Parts, Reply};

/// A request that came in.
pub(crate) trait Exchange: Send + Sized + 'static {
    /// Permission to hold the transport's memory while the request waits for other requests of the
    /// kernel.
    type HoldPermit: Send + 'static;

    /// The header that all requests have.
    fn head(&self) -> Head;

    /// The parts of the request after the header.
    fn parts(&self) -> Parts<'_>;

    /// The memory for the answer's bytes. It may be the request's memory, so writing into it may
    /// destroy the request.
    fn answer_buffer(&mut self) -> &mut [u8];

    /// Sends the answer: the number of bytes that are in [`Self::answer_buffer`], or an error.
    fn answer(self, answer: Result<usize, Errno>);

    /// Ends a request that needs no answer.
    fn dismiss(self);

    /// Permission to wait for other requests of the kernel. `None` while too many requests wait.
    fn hold_permit(&self) -> Option<Self::HoldPermit>;

    /// As [`Self::hold_permit`], for a command of ioctl(2). Commands of users other than root leave
    /// room for commands of root.
    fn order_permit(&self, is_by_root: bool) -> Option<Self::HoldPermit> {
        let _ = is_by_root;
        self.hold_permit()
    }

    /// Gives back memory that a request does not need while it waits. A command of ioctl(2) stays
    /// whole; the data of other requests may be lost. The remaining memory has room for an answer
    /// to ioctl(2).
    fn set_aside(self) -> Self {
        self
    }

    /// Sends an answer that is not in [`Self::answer_buffer`] yet.
    fn reply(mut self, answer: Result<Reply, Errno>) {
        let written = answer.and_then(|reply| reply.write(self.answer_buffer()));
        self.answer(written);
    }
}
