//! Makes a volume in a file, writes to it, and reads it back after a remount.
//!
//! `cargo run -p buttress-fs --example hello [IMAGE]`; Linux can mount the image that this program
//! leaves.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_fs::{Filesystem, MakeOptions, MountOptions, NewInode};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image =
        std::env::args_os().nth(1).map_or_else(|| PathBuf::from("hello.img"), PathBuf::from);
    let device = FileDevice::create(&image, 256 << 20)?;
    Filesystem::make(&device, &MakeOptions { label: b"hello".to_vec(), ..MakeOptions::default() })?;
    drop(device);

    let open = || -> Result<Arc<dyn Device>, buttress_block::Error> {
        Ok(Arc::new(FileDevice::open(
            &image,
            OpenOptions { write: true, ..OpenOptions::default() },
        )?))
    };
    let fs = Filesystem::open(vec![open()?], MountOptions::default())?;
    let dir = fs.root().mkdir(b"greetings", 0o755, 0, 0)?;
    for (name, text) in [("english", "hello\n"), ("deutsch", "hallo\n")] {
        dir.create(name.as_bytes(), NewInode::file(0o644))?.write_at(0, text.as_bytes())?;
    }
    drop(dir);
    fs.close()?;

    let fs = Filesystem::open(vec![open()?], MountOptions::parse("ro")?)?;
    let dir = fs.resolve("greetings")?;
    let mut names = Vec::new();
    dir.read_dir(0, |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })?;
    for name in names {
        let file = dir.lookup(&name)?;
        let mut text = vec![0; file.attr().size as usize];
        file.read_at(0, &mut text)?;
        print!("{}: {}", String::from_utf8_lossy(&name), String::from_utf8_lossy(&text));
    }
    Ok(())
}
