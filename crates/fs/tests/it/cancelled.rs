//! Requests to stop work on the whole volume, while such work begins and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::thread;
use buttress_block::{Device, MemoryDevice};
use buttress_format::DeviceId;
use buttress_fs::{ErrorKind, Filesystem, MakeOptions, MountOptions, Stopped};

/// A request is answered for one moment. Work that begins right after the request is not taken for
/// other work.
#[test]
fn work_that_begins_is_not_other_work() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    Filesystem::make(&*device, &MakeOptions::default()).expect("a volume");
    let options = MountOptions::parse("rw").expect("options");
    let fs = Filesystem::open(vec![device], options).expect("a mount");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let refused = fs.resize_device(DeviceId(1), 1, &mut |_| true);
                assert_eq!(refused.expect_err("it is too small").kind(), ErrorKind::Invalid);
            }
        });
        for _ in 0..100_000 {
            assert_ne!(fs.cancel_resize(), Stopped::OtherWork);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
