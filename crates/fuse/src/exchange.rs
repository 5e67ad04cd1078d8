//! One request and the way of its answer, whatever transport brought it.
//!
//! # What must hold
//!
//! - A transport knows no operation. The dispatcher knows no transport.
//! - Each request is answered once (D1 of `door`). A transport answers with `EIO` what is dropped.

use buttress_protocol::{Errno, Head, Parts, Reply};

/// A request that came in.
pub(crate) trait Exchange: Send + Sized + 'static {
    /// Leave to hold the transport's memory until the kernel has sent requests of its own.
    type Patience: Send + 'static;

    /// What all requests say.
    fn head(&self) -> Head;

    /// What follows the header.
    fn parts(&self) -> Parts<'_>;

    /// The place of the answer's bytes. The request may be in the same place: it is gone then.
    fn room(&mut self) -> &mut [u8];

    /// Answers: so many bytes are in the room, or why not.
    fn answer(self, answer: Result<usize, Errno>);

    /// Ends a request that no answer is due to.
    fn dismiss(self);

    /// Leave to wait for what the kernel sends; none while too many others wait.
    fn patience(&self) -> Option<Self::Patience>;

    /// Answers with bytes that are not in the room.
    fn reply(mut self, answer: Result<Reply, Errno>) {
        let written = answer.and_then(|reply| reply.write(self.room()));
        self.answer(written);
    }
}
