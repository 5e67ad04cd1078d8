//! Measures how fast small files are made, read and removed through the library alone. Then
//! measures how fast a large file is written and read.
//!
//! `cargo run --release -p buttress-fs --example small_files [FILES] [DIRECTORIES]`

use std::sync::Arc;
use std::time::Instant;

use buttress_block::{Device, MemoryDevice};
use buttress_fs::{Filesystem, MakeOptions, MountOptions, NewInode};

/// The length of a large file, in requests of one mebibyte. Such a file takes most of the device,
/// so the second file reuses the space of the first file.
const LARGE: u64 = 2048;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let files: usize = args.next().map_or(Ok(50_000), |n| n.parse())?;
    let dirs: usize = args.next().map_or(Ok(100), |n| n.parse())?;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(2560 << 20));
    Filesystem::make(&*device, &MakeOptions::default())?;
    let fs = Filesystem::open(vec![device], MountOptions::default())?;
    let root = fs.root();
    let data = vec![0x5a; 4096];
    let report = |what: &str, count: usize, since: Instant| {
        let seconds = since.elapsed().as_secs_f64();
        println!("{what:<28} {:>9.0} /s   ({seconds:.2} s)", count as f64 / seconds);
    };

    let start = Instant::now();
    let mut homes = Vec::new();
    for n in 0..dirs {
        homes.push(root.mkdir(format!("d{n}").as_bytes(), 0o755, 0, 0)?);
    }
    for n in 0..files {
        let file = homes[n % dirs].create(format!("f{n}").as_bytes(), NewInode::file(0o644))?;
        file.write_at(0, &data)?;
    }
    report("create and write 4 KiB", files, start);
    let start = Instant::now();
    fs.sync()?;
    report("sync", files, start);

    let start = Instant::now();
    for n in 0..files {
        let file = homes[n % dirs].lookup(format!("f{n}").as_bytes())?;
        assert_eq!(file.attr().size, 4096);
    }
    report("look up and stat", files, start);
    let start = Instant::now();
    let mut buf = vec![0; 4096];
    for n in 0..files {
        homes[n % dirs].lookup(format!("f{n}").as_bytes())?.read_at(0, &mut buf)?;
    }
    report("look up and read", files, start);
    let start = Instant::now();
    for n in 0..files {
        homes[n % dirs].unlink(format!("f{n}").as_bytes())?;
    }
    report("unlink", files, start);
    let start = Instant::now();
    fs.sync()?;
    report("sync", files, start);

    // The second file reuses memory that the device has already got from the system.
    for what in ["a new device", "a used one"] {
        let file = root.create(b"big", NewInode::file(0o644))?;
        let mut block = vec![0x33; 1 << 20];
        let start = Instant::now();
        for n in 0..LARGE {
            file.write_at(n << 20, &block)?;
        }
        report(&format!("write 1 MiB to {what}"), LARGE as usize, start);
        fs.sync()?;
        report("and sync", LARGE as usize, start);
        let start = Instant::now();
        for n in 0..LARGE {
            file.read_at(n << 20, &mut block)?;
        }
        report("read 1 MiB", LARGE as usize, start);
        drop(file);
        root.unlink(b"big")?;
        fs.sync()?;
    }
    drop((root, homes));
    fs.close()?;
    Ok(())
}
