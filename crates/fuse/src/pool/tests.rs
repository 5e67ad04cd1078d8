//! Tests of the pool: which thread reads, sits on the bench or is called, request by request.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use super::*;
use crate::mount::Link;

/// W1: a thread that has forgotten nodes goes to the bench if another thread reads, as after any
/// request.
#[test]
fn a_thread_that_forgot_sits_beside_a_reader() {
    let (near, _far) = UnixStream::pair().expect("a pair");
    let link = Link::new(&OwnedFd::from(near)).expect("a link");
    let pool = WorkerPool::new(link, 3, &Options { handoff: true, ..Options::default() });
    let worker = Arc::clone(&pool);
    std::thread::spawn(move || drop(worker.guard(Kind::Forget, 0)));
    while pool.bench.lock().watch.is_none() {
        std::thread::yield_now();
    }
    assert_eq!(pool.readers.load(Ordering::SeqCst), 2, "W1: the thread sits");
}

/// W1: a thread that finds another request waiting becomes one more reader. If no request waits,
/// the thread sits down on the bench until it is called.
#[test]
fn a_thread_that_sees_a_request_takes_it() {
    let (near, mut far) = UnixStream::pair().expect("a pair");
    let mut request = near.try_clone().expect("another descriptor");
    let link = Link::new(&OwnedFd::from(near)).expect("a link");
    let pool = WorkerPool::new(link, 3, &Options { handoff: true, ..Options::default() });
    far.write_all(b"r").expect("it is sent");
    let (sender, done) = mpsc::channel();
    let worker = Arc::clone(&pool);
    std::thread::spawn(move || {
        drop(worker.guard(Kind::WriteSmall, 0));
        sender.send(worker.readers.load(Ordering::SeqCst)).expect("the test waits");
        request.read_exact(&mut [0]).expect("it is there");
        drop(worker.guard(Kind::WriteSmall, 0));
        sender.send(worker.readers.load(Ordering::SeqCst)).expect("the test waits");
    });
    let soon = Duration::from_secs(10);
    assert_eq!(done.recv_timeout(soon), Ok(3), "W1: the thread reads on");
    while pool.bench.lock().watch.is_none() {
        std::thread::yield_now();
    }
    assert_eq!(pool.readers.load(Ordering::SeqCst), 2, "W1: the thread sits");
    pool.call_one();
    assert_eq!(done.recv_timeout(soon), Ok(3), "W1: the thread was called");
    assert_eq!(pool.handling.load(Ordering::SeqCst), 0, "nothing is at work");
}

/// The bytes of a large write take long to arrive, so the time between requests does not show
/// whether requests wait. A thread that has taken a large write checks whether more requests wait.
#[test]
fn a_large_write_calls_another_where_requests_wait() {
    let (near, mut far) = UnixStream::pair().expect("a pair");
    let link = Link::new(&OwnedFd::from(near)).expect("a link");
    let pool = WorkerPool::new(link, 2, &Options { handoff: true, ..Options::default() });
    let worker = Arc::clone(&pool);
    std::thread::spawn(move || drop(worker.guard(Kind::Meta, 0)));
    while pool.bench.lock().watch.is_none() {
        std::thread::yield_now();
    }
    {
        // The watch may begin to read at any of its ticks. Another seat reads only when it is
        // called.
        let mut bench = pool.bench.lock();
        let seat = bench.watch.take().expect("a watch");
        seat.is_watch.store(false, Ordering::Relaxed);
        bench.seated.push(seat);
    }
    let guard = pool.guard(Kind::WriteLarge, 0);
    assert_eq!(pool.readers.load(Ordering::SeqCst), 0, "nothing waits, no thread is called");
    drop(guard);
    far.write_all(b"r").expect("it is sent");
    let guard = pool.guard(Kind::WriteSmall, 0);
    assert_eq!(pool.readers.load(Ordering::SeqCst), 0, "small ones go by the clock");
    drop(guard);
    let guard = pool.guard(Kind::WriteLarge, 0);
    assert_eq!(pool.readers.load(Ordering::SeqCst), 1, "a thread reads on");
    drop(guard);
}
