//! The connections of a server, so that the server can end them and wait until they are gone.
//!
//! # Locks
//!
//! One lock of rank `Leaf` protects the table. A connection that ends wakes the threads that wait
//! for an empty table.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use buttress_base::sync::Condvar;
use buttress_base::{Rank, Ranked};

use crate::stream::Stream;

/// The sockets of the present connections.
#[derive(Debug)]
pub(crate) struct Connections {
    table: Ranked<Table>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    streams: HashMap<Number, Arc<Stream>>,
    /// The number of connections since the start.
    count: u64,
}

/// Tells connections apart in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Number(pub(crate) u64);

impl Connections {
    pub(crate) fn new() -> Arc<Self> {
        let table = Ranked::new(Rank::Leaf, Table::default());
        Arc::new(Self { table, left: Condvar::new() })
    }

    /// Adds a connection, unless there are `max` of them.
    pub(crate) fn enter(self: &Arc<Self>, stream: Stream, max: usize) -> Option<Member> {
        let stream = Arc::new(stream);
        let mut table = self.table.lock();
        if table.streams.len() >= max {
            return None;
        }
        table.count += 1;
        let number = Number(table.count);
        table.streams.insert(number, Arc::clone(&stream));
        Some(Member { connections: Arc::clone(self), stream, number })
    }

    /// Ends reading on every connection, and writing too if `both`.
    pub(crate) fn end_all(&self, both: bool) {
        let table = self.table.lock();
        for stream in table.streams.values() {
            stream.end(both);
        }
    }

    /// Waits until there is no connection, or for `limit`; returns whether all connections are
    /// gone.
    pub(crate) fn wait_empty(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut table = self.table.lock();
        while !table.streams.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            table.wait_for(&self.left, left);
        }
        true
    }

    /// The number of connections since the start.
    pub(crate) fn count(&self) -> u64 {
        self.table.lock().count
    }
}

/// One connection, in the table for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Member {
    connections: Arc<Connections>,
    stream: Arc<Stream>,
    number: Number,
}

impl Member {
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn number(&self) -> Number {
        self.number
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stream.end(true);
        self.connections.table.lock().streams.remove(&self.number);
        self.connections.left.notify_all();
    }
}
