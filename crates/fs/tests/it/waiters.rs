//! What threads wait for: a device that does not answer, another commit, and the lock of a file.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

use buttress_base::activity::{self, Cause};
use buttress_block::{Device, Error};
use buttress_fs::{Filesystem, NewInode};

use crate::devices::{Hook, Hooked};
use crate::volume::{file_with, memory, mount_with};

/// The number that these tests give to their requests.
const OPERATION: u32 = 42;
const WAIT_MAX: Duration = Duration::from_secs(60);
/// So many names that a directory takes several leaves.
const NAMES: usize = 3000;

/// Holds back requests while it is shut.
#[derive(Debug)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn set(&self, is_shut: bool) {
        *self.0.lock().expect("a gate") = is_shut;
        self.1.notify_all();
    }

    fn pass(&self) {
        let is_shut = self.0.lock().expect("a gate");
        drop(self.1.wait_while(is_shut, |is_shut| *is_shut).expect("a gate"));
    }
}

impl Hook for Gate {
    fn read(&self, below: &dyn Device, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.pass();
        below.read_at(offset, buf)
    }

    fn flush(&self, below: &dyn Device) -> Result<(), Error> {
        self.pass();
        below.flush()
    }
}

/// Opens the gate when it is dropped, so that a test that fails comes to its end.
struct Opened<'a>(&'a Gate);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

fn gated(below: &Arc<dyn Device>) -> (Arc<Hooked<Gate>>, Filesystem) {
    let gate = Hooked::new(below, Gate(Mutex::new(false), Condvar::new()));
    let device: Arc<dyn Device> = Arc::clone(&gate) as _;
    (gate, mount_with(&device, "commit=300"))
}

/// What a thread of this name waits for, with the number of its file.
fn wait_of(name: &str) -> Option<(Cause, u64)> {
    let thread = activity::threads().into_iter().find(|thread| thread.name == name)?;
    let work = thread.work?;
    assert_eq!(work.operation, Some(OPERATION));
    let (cause, since) = work.wait?;
    assert!(since <= work.since, "it waits for longer than it works");
    Some((cause, work.subject))
}

/// Waits until a thread of this name waits for `cause`.
fn until_it_waits(name: &str, cause: Cause, number: u64) {
    let since = Instant::now();
    while wait_of(name) != Some((cause, number)) {
        assert!(since.elapsed() < WAIT_MAX, "{name} waits for {:?}", wait_of(name));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A request: the name of its thread, the cause of its wait, and its work.
type Request<'a> = (&'static str, Cause, Box<dyn FnOnce() + Send + 'a>);

/// Runs requests, each on a thread of its name, while the device does not answer. Each is seen with
/// its number and its cause, in this order.
fn while_it_is_shut(gate: &Gate, requests: Vec<Request<'_>>) {
    gate.set(true);
    std::thread::scope(|scope| {
        let _opened = Opened(gate);
        for (number, (name, cause, work)) in (300..).zip(requests) {
            let run = move || {
                let _working = activity::begin(OPERATION, number, Instant::now());
                work();
                assert_eq!(wait_of(name), None, "the wait is over");
            };
            Builder::new().name(name.to_owned()).spawn_scoped(scope, run).expect("a thread");
            until_it_waits(name, cause, number);
        }
    });
}

/// One commit waits for the device, and another one for the first.
#[test]
fn commits_wait_for_the_device_and_for_each_other() {
    let below = memory(64);
    let (gate, fs) = gated(&below);
    file_with(&fs.root(), "file", &[1; 500]);
    let sync = || fs.sync().expect("durable");
    while_it_is_shut(
        &gate.hook,
        vec![
            ("first commit", Cause::DeviceFlush, Box::new(sync)),
            ("second commit", Cause::Commit, Box::new(sync)),
        ],
    );
    fs.close().expect("closed");
}

/// A new name makes a thread read from the device under the lock of its directory. Another new name
/// waits for that lock.
#[test]
fn new_names_wait_for_the_lock_of_their_directory() {
    let below = memory(256);
    let (_, fs) = gated(&below);
    for number in 0..NAMES {
        fs.root().create(format!("{number}").as_bytes(), NewInode::file(0o644)).expect("made");
    }
    fs.close().expect("closed");
    let (gate, fs) = gated(&below);
    let top = fs.root();
    let create = |name: &'static [u8]| {
        let top = &top;
        Box::new(move || drop(top.create(name, NewInode::file(0o644)).expect("made")))
    };
    while_it_is_shut(
        &gate.hook,
        vec![
            ("holds the lock", Cause::DeviceRead, create(b"one")),
            ("wants the lock", Cause::File, create(b"other")),
        ],
    );
    drop(top);
    fs.close().expect("closed");
}
