//! Linux and we use each other's caches. Each side fills and drains them, and is killed meanwhile.

mod killed;
mod linux;
mod order;
mod pmem;
mod volume;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_cache::{CacheDevice, CacheOptions, format};
use buttress_writecache_rig::{Guest, read_model};

/// Sectors of the origin: 4 MiB.
const SECTORS: usize = 8192;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_rig-work"))
}

fn guest() -> &'static Guest {
    static GUEST: OnceLock<Guest> = OnceLock::new();
    GUEST.get_or_init(|| Guest::new(program()))
}

/// A file of zeroes.
fn blank(path: PathBuf, sectors: usize) -> PathBuf {
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(sectors as u64 * 512).expect("there is room");
    path
}

fn file(path: &Path) -> Arc<dyn Device> {
    // A guest's last process may take a moment to release the file.
    for _ in 0..1000 {
        if let Ok(file) = FileDevice::open(path, OpenOptions::WRITE) {
            return Arc::new(file);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Arc::new(FileDevice::open(path, OpenOptions::WRITE).expect("it opens"))
}

fn open(origin: &Path, cache: &Path, options: &str) -> CacheDevice {
    let options = CacheOptions::parse(options).expect("right");
    CacheDevice::open(file(origin), file(cache), options).expect("the cache opens")
}

fn make(origin: &Path, cache: &Path, block_size: u32) {
    format(file(cache), Some(&*file(origin)), block_size, 0, false).expect("it fits");
}

fn content(device: &dyn Device) -> Vec<u32> {
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).expect("it can be read");
    read_model(&bytes)
}
