//! Pages that a direct write has made old: the kernel drops them before the answer
//! (`front_end::content::C4`).

use std::sync::Arc;

use super::content::Write;
use super::{FrontEnd, Node};
use crate::notifier_threads::Span;

/// Pages that are to be dropped, since a write has made them old.
#[derive(Debug)]
pub(crate) struct OldPages {
    id: u64,
    node: Arc<Node>,
    span: Span,
    /// The value of [`FilledPages`](crate::filled_pages::FilledPages) when it was decided to drop
    /// all pages.
    seen: u64,
}

impl FrontEnd {
    /// The pages that the kernel may hold from before a finished direct write (`filled_pages::S2`).
    /// They are to be dropped before the answer (`front_end::content::C4`).
    pub(crate) fn old_pages(&self, write: Write, count: u32) -> Option<OldPages> {
        if !write.is_direct() || count == 0 {
            return None;
        }
        let node = self.node(write.node).ok()?;
        let (span, seen) = node.filled_pages.after_write(Span::Part(write.offset, count))?;
        Some(OldPages { id: write.node, node, span, seen })
    }

    /// Has the kernel drop old pages, and then answers.
    pub(crate) fn drop_pages(&self, old: OldPages, answer: impl FnOnce() + Send + 'static) {
        self.notifier_threads.after_flush(old.id, old.span, move || {
            if old.span == Span::Whole {
                old.node.filled_pages.note_dropped(old.seen);
            }
            answer();
        });
    }
}
