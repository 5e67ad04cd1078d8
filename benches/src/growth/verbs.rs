//! The files that a verb needs beside an image.

use std::fs;

use buttress_send::SendOptions;

use super::Done;
use super::bed::{Bed, SECTOR, name};
use super::names::fill_files;
use super::whole::balance;

/// A folder of small files on the host, and no image.
pub(super) fn folder(bed: &Bed, size: u64) -> Done {
    let dir = bed.dir().join("src");
    for at in 0..size {
        let folder = dir.join(format!("d{}", at / 100));
        fs::create_dir_all(&folder)?;
        let file = folder.join(String::from_utf8(name(at))?);
        fs::write(file, [at as u8; SECTOR as usize])?;
    }
    Ok(fs::create_dir_all(dir)?)
}

/// A read-only snapshot of many files.
pub(super) fn read_only(bed: &Bed, size: u64) -> Done {
    fill_files(bed, size)?;
    Ok(bed.fs().create_snapshot("/", "/snap", true)?)
}

/// A stream of many files, and an image that has them.
pub(super) fn stream(bed: &Bed, size: u64) -> Done {
    read_only(bed, size)?;
    bed.fs().sync()?;
    let stream = fs::File::create(bed.dir().join("stream"))?;
    let engine = bed.fs().engine();
    let snapshot = bed.at("snap")?.id().tree;
    let to = std::io::BufWriter::new(stream);
    let to = buttress_send::send(engine, &SendOptions::new(snapshot), to)?;
    to.into_inner()?;
    bed.fs().create_dir("/there")?;
    Ok(())
}

/// Files of which every other one was deleted after a commit. The others keep the block groups.
pub(super) fn deleted_files(bed: &Bed, size: u64) -> Done {
    fill_files(bed, size)?;
    bed.fs().sync()?;
    for at in (0..size).step_by(2) {
        bed.fs().remove_file(format!("/src/{}", String::from_utf8(name(at))?))?;
    }
    Ok(bed.fs().sync()?)
}

/// Files in the image, and a second device, which is added or replaces the first device.
pub(super) fn files_and_device(bed: &Bed, size: u64) -> Done {
    fill_files(bed, size)?;
    Ok(fs::File::create(bed.dir().join("img1"))?.set_len(4 << 30)?)
}

/// Files on a volume of two devices. The balance moves all of them to the second, which has more
/// room.
pub(super) fn files_on_two(bed: &Bed, size: u64) -> Done {
    fill_files(bed, size)?;
    bed.add_device(16)?;
    balance(bed, size)
}
