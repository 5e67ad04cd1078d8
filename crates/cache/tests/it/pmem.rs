//! Tests persistent memory: a mapped file is a device, and a cache on it works in disk mode too.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, FileDevice, MemoryDevice, OpenOptions};
use buttress_cache::{PmemDevice, format};

use crate::rig::{by_hand, open, read, write};

/// Reads and writes at any place agree with an array, and a flush reaches the file.
#[test]
fn a_mapped_file_agrees_with_an_array() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("memory");
    const LEN: usize = 100_003;
    std::fs::write(&path, vec![0; LEN]).expect("a file");
    let device = PmemDevice::open(&path, OpenOptions::WRITE).expect("it is mapped");
    let mut model = vec![0; LEN];
    let mut rng = Rng::new(6);
    for _ in 0..300 {
        let start = rng.below(LEN as u64) as usize;
        let len = rng.below((LEN - start).min(5000) as u64 + 1) as usize;
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        device.write_at(start as u64, &bytes).expect("it is there");
        model[start..start + len].copy_from_slice(&bytes);
        let start = rng.below(LEN as u64 - 100) as usize;
        let mut bytes = [0; 100];
        device.read_at(start as u64, &mut bytes).expect("it is there");
        assert_eq!(bytes, model[start..start + 100]);
    }
    device.flush().expect("it is durable");
    device.write_at(LEN as u64, &[1]).expect_err("past the end");
    drop(device);
    assert!(std::fs::read(&path).expect("a file") == model);
}

/// A cache that was written in one mode can be read in the other.
#[test]
fn both_modes_have_one_layout() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cache");
    std::fs::File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("a file");
    let origin = Arc::new(MemoryDevice::new(1 << 20));
    {
        let cache = Arc::new(PmemDevice::open(&path, OpenOptions::WRITE).expect("it is mapped"));
        format(Arc::clone(&cache) as _, Some(&*origin), 1024, 0, false).expect("it fits");
        let cached = open(Arc::clone(&origin) as _, cache, &by_hand("mode=pmem"));
        write(&cached, 0, &[5; 100]).expect("it is there");
        cached.close().expect("it is there");
    }
    let cache = Arc::new(FileDevice::open(&path, OpenOptions::WRITE).expect("a file"));
    let cached = open(Arc::clone(&origin) as _, cache, &by_hand(""));
    assert_eq!(read(&cached)[..101], [vec![5; 100], vec![0]].concat());
}
