//! Standard output, on which nothing depends (`progs::PG4`).

use std::cell::Cell;

use crate::exit::Failure;
use crate::ui::Ui;

/// What is said on standard output (`progs::PG4`).
pub(super) struct Said<'a> {
    pub(super) ui: &'a Ui,
    /// Why the first line was lost.
    failure: Cell<Option<Failure>>,
}

impl<'a> Said<'a> {
    pub(super) fn new(ui: &'a Ui) -> Self {
        Self { ui, failure: Cell::default() }
    }

    pub(super) fn line(&self, text: impl AsRef<str>) {
        if let Err(failure) = self.ui.line(text) {
            self.failure.set(Some(self.failure.take().unwrap_or(failure)));
        }
    }

    /// Why the first line was lost, if one was.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.failure.take()
    }
}
