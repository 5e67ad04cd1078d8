//! Requests to stop work on the whole volume, while such work begins and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use buttress_base::thread;
use buttress_block::{Device, MemoryDevice};
use buttress_format::DeviceId;
use buttress_fs::{Filesystem, MakeOptions, MountOptions, Stopped};

const SIZE: u64 = 256 << 20;
/// How many running works are stopped.
const ROUNDS: u32 = 500;

/// A request is answered for one moment: work that begins right after the request is not taken for
/// other work. And it waits for the work that it found, not for the work that begins after that.
#[test]
fn work_that_begins_is_not_other_work() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
    Filesystem::make(&*device, &MakeOptions::default()).expect("a volume");
    let options = MountOptions::parse("rw").expect("options");
    let fs = Filesystem::open(vec![device], options).expect("a mount");
    let is_over = AtomicBool::new(false);
    let (stopped, wrong) = thread::scope(|scope| {
        scope.spawn(|| {
            let mut len = SIZE;
            while !is_over.load(Ordering::Relaxed) {
                // A resize that is cancelled fails. The next one is as good.
                let _ = fs.resize_device(DeviceId(1), len, &mut |_| true);
                len = SIZE - (1 << 20) - (len % (2 << 20));
            }
        });
        let begun = Instant::now();
        let (mut stopped, mut wrong) = (0, 0);
        while stopped < ROUNDS && wrong == 0 && begun.elapsed() < Duration::from_secs(100) {
            match fs.cancel_resize() {
                Stopped::Work => stopped += 1,
                Stopped::OtherWork => wrong += 1,
                Stopped::Nothing => std::thread::yield_now(),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        (stopped, wrong)
    });
    assert_eq!((stopped, wrong), (ROUNDS, 0), "stopped, and taken for other work");
    fs.close().expect("a close");
}
