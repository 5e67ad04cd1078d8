//! Devices learn the class of the bytes they get: data or metadata.

use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use buttress_block::{Class, Device, Error, Layer, MemoryDevice};
use buttress_format::{BlockGroupFlags, Logical};
use buttress_volume::Volume;

use crate::builders::{CHUNK_AT, WRITE, chunk, devices};

/// Records the place and the class of each write.
#[derive(Debug)]
struct Listening {
    inner: Arc<MemoryDevice>,
    heard: Mutex<Vec<(u64, u64, Class)>>,
}

impl Layer for Listening {
    type Inner = MemoryDevice;

    fn inner(&self) -> &MemoryDevice {
        &self.inner
    }

    fn on_write(&self, _offset: u64, _buf: &[u8]) -> Result<(), Error> {
        panic!("a volume knows what it writes");
    }

    fn on_write_classed(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        class: Class,
    ) -> Result<(), Error> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.heard.lock().expect("not poisoned").push((offset, len, class));
        self.inner.write_vectored_at(offset, bufs)
    }

    fn on_flush(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Data has another class than metadata, on every copy. Adjacent bytes of two classes are two
/// requests.
#[test]
fn devices_are_told_what_is_metadata() {
    const LEN: u64 = 1 << 20;
    let at = |index: u64| Logical(CHUNK_AT.0 + index * LEN);
    let mixed = BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA);
    let kinds = [BlockGroupFlags::METADATA, BlockGroupFlags::DATA, mixed];
    let mut chunks = Vec::new();
    for (index, kind) in (0..).zip(kinds) {
        let mut made = chunk(BlockGroupFlags(0), at(index), LEN, &[1]);
        made.flags = kind;
        made.stripes[0].offset = (2 << 20) + index * LEN;
        chunks.push(made);
    }
    let system = chunk(BlockGroupFlags(0), at(8), LEN, &[1]);
    let mut system = system;
    system.stripes[0].offset = 40 << 20;
    let inner = Arc::clone(&devices(1, &[system])[0]);
    let device = Arc::new(Listening { inner, heard: Mutex::default() });
    let listening = Arc::clone(&device) as Arc<dyn Device>;
    let (volume, superblock) = Volume::open(vec![listening], WRITE).expect("a good volume");
    for chunk in chunks {
        volume.add_chunk(chunk).expect("it overlaps nothing");
    }
    let bytes = vec![1; 8192];
    let half = LEN - 4096;
    let writes = [
        (Logical(at(0).0 + half), &bytes[..4096]),
        (at(1), &bytes[..]),
        (at(2), &bytes[..4096]),
        (at(8), &bytes[..4096]),
    ];
    volume.write_batch(&writes).expect("memory");
    volume.flush_and_commit(&superblock).expect("memory");
    let heard = std::mem::take(&mut *device.heard.lock().expect("not poisoned"));
    let first = 2 << 20;
    assert_eq!(
        heard,
        [
            (first + half, 4096, Class::Metadata),
            (first + LEN, 8192, Class::Data),
            (first + 2 * LEN, 4096, Class::Metadata),
            (40 << 20, 4096, Class::Metadata),
            (0x10000, 4096, Class::Metadata),
        ]
    );
}
