//! A device that changes some of its requests: the hook of a test says which requests, and how.

use std::fmt::Debug;
use std::sync::Arc;

use buttress_block::{Device, Error, Layer};

/// Handles requests. Each method that a hook does not implement passes its request to the device
/// below.
pub(crate) trait Hook: Debug + Send + Sync {
    fn read(&self, below: &dyn Device, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        below.read_at(offset, buf)
    }

    fn discard(&self, below: &dyn Device, offset: u64, len: u64) -> Result<(), Error> {
        below.discard(offset, len)
    }

    fn flush(&self, below: &dyn Device) -> Result<(), Error> {
        below.flush()
    }
}

/// A device behind a [`Hook`].
#[derive(Debug)]
pub(crate) struct Hooked<H> {
    below: Arc<dyn Device>,
    pub(crate) hook: H,
}

impl<H: Hook> Hooked<H> {
    pub(crate) fn new(below: &Arc<dyn Device>, hook: H) -> Arc<Self> {
        Arc::new(Self { below: Arc::clone(below), hook })
    }
}

impl<H: Hook> Layer for Hooked<H> {
    type Inner = dyn Device;

    fn inner(&self) -> &Self::Inner {
        &*self.below
    }

    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.hook.read(&*self.below, offset, buf)
    }

    fn on_flush(&self) -> Result<(), Error> {
        self.hook.flush(&*self.below)
    }

    fn on_discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.hook.discard(&*self.below, offset, len)
    }
}
