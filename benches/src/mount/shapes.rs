//! Loads that grow in one dimension: entries of a folder, names of an inode, its xattrs, its
//! extents, references of an extent.
//!
//! # What must hold
//!
//! - A load makes as many system calls as it counts. So a time per unit that grows with the count
//!   is a cost of the file system.
//! - What the empty server cannot answer is left out there.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, copy_file_range, setxattr};

use super::loads::{Bench, Load, Run, name};
use crate::report::Better::{self, Less, More};
use crate::setup::sh;
use crate::work::{SMALL_LEN, sync, text};

/// Counts of the smallest size.
const NAMES: usize = 6250;
const LINKS: usize = 3750;
const XATTRS: usize = 1250;
const EXTENTS: usize = 18_750;
const REFLINKS: usize = 2500;
/// Files of a folder that `ls -lR` lists.
const PER_DIR: usize = 300;
/// Apart from each other, so that blocks do not join to one extent.
const APART: u64 = 2 * SMALL_LEN as u64;

/// All loads, `grown` times as large as the smallest.
pub(super) fn all(grown: usize) -> Vec<Load> {
    let load = |name, part, (count, each), better: Better, run: Run| Load {
        name,
        part,
        count: count * grown,
        each,
        better,
        is_cold: false,
        is_base: false,
        needs_volume: false,
        run,
    };
    let base = |load| Load { is_base: true, ..load };
    let cold = |load| Load { is_cold: true, ..load };
    let volume = |load| Load { needs_volume: true, ..load };
    vec![
        base(load("create names in one folder", "folder", (NAMES, "name"), More, create_names)),
        cold(load("ls -l of one folder", "folder", (NAMES, "name"), More, list_names)),
        base(load("create files in folders", "list", (EXTENTS, "file"), More, create_files)),
        cold(load("ls -lR", "list", (EXTENTS, "file"), Less, list_files)),
        load("hard links of one inode", "links", (LINKS, "link"), More, add_links),
        base(load("set xattrs of one inode", "xattrs", (XATTRS, "xattr"), More, set_xattrs)),
        load("replace xattrs of one inode", "xattrs", (XATTRS, "xattr"), More, replace_xattrs),
        volume(base(load("write extents of one file", "cut", (EXTENTS, "extent"), Less, extents))),
        volume(load("ftruncate of its extents", "cut", (EXTENTS, "extent"), Less, cut)),
        volume(base(load("write extents again", "unlink", (EXTENTS, "extent"), Less, extents))),
        volume(load("unlink of its extents", "unlink", (EXTENTS, "extent"), Less, unlink)),
        volume(load("reflinks of one extent", "reflinks", (REFLINKS, "clone"), Less, reflinks)),
    ]
}

fn create_names(bench: &Bench<'_>) -> Result<(), String> {
    let folder = bench.root.join("folder");
    fs::create_dir(&folder).map_err(text)?;
    for number in 0..NAMES * bench.plan.grown {
        File::create_new(folder.join(format!("name-{number:06}"))).map_err(text)?;
    }
    Ok(())
}

fn list_names(bench: &Bench<'_>) -> Result<(), String> {
    list("-l", &bench.root.join("folder"))
}

fn create_files(bench: &Bench<'_>) -> Result<(), String> {
    for number in 0..EXTENTS * bench.plan.grown {
        let folder = bench.root.join(format!("list/d{:04}", number / PER_DIR));
        if number % PER_DIR == 0 {
            fs::create_dir_all(&folder).map_err(text)?;
        }
        File::create_new(folder.join(format!("file-{number:06}"))).map_err(text)?;
    }
    Ok(())
}

fn list_files(bench: &Bench<'_>) -> Result<(), String> {
    list("-lR", &bench.root.join("list"))
}

fn list(how: &str, folder: &Path) -> Result<(), String> {
    sh("sh", &["-c", "ls \"$0\" \"$1\" > /dev/null", how, &name(folder)]).map(drop)
}

fn add_links(bench: &Bench<'_>) -> Result<(), String> {
    let folder = bench.root.join("links");
    fs::create_dir(&folder).map_err(text)?;
    let first = folder.join("first");
    File::create_new(&first).map_err(text)?;
    for number in 0..LINKS * bench.plan.grown {
        fs::hard_link(&first, folder.join(format!("link-{number:05}"))).map_err(text)?;
    }
    Ok(())
}

fn set_xattrs(bench: &Bench<'_>) -> Result<(), String> {
    let path = bench.root.join("xattrs");
    File::create_new(&path).map_err(text)?;
    xattrs(&path, bench.plan.grown, b'a', XattrFlags::CREATE)
}

/// The empty server keeps no value, so it is not asked whether there is one.
fn replace_xattrs(bench: &Bench<'_>) -> Result<(), String> {
    xattrs(&bench.root.join("xattrs"), bench.plan.grown, b'b', XattrFlags::empty())
}

fn xattrs(path: &Path, grown: usize, byte: u8, flags: XattrFlags) -> Result<(), String> {
    let value = [byte; 32];
    for number in 0..XATTRS * grown {
        setxattr(path, format!("user.x{number:06}"), &value, flags).map_err(text)?;
    }
    Ok(())
}

fn extents_path(bench: &Bench<'_>) -> PathBuf {
    bench.root.join("extents")
}

/// Writes every other block of a file.
fn extents(bench: &Bench<'_>) -> Result<(), String> {
    let file = File::create(extents_path(bench)).map_err(text)?;
    let block = [5; SMALL_LEN];
    for number in 0..(EXTENTS * bench.plan.grown) as u64 {
        file.write_all_at(&block, number * APART).map_err(text)?;
    }
    sync(&bench.root)
}

fn cut(bench: &Bench<'_>) -> Result<(), String> {
    let file = File::options().write(true).open(extents_path(bench)).map_err(text)?;
    file.set_len(0).map_err(text)?;
    drop(file);
    sync(&bench.root)
}

fn unlink(bench: &Bench<'_>) -> Result<(), String> {
    fs::remove_file(extents_path(bench)).map_err(text)?;
    sync(&bench.root)
}

/// Clones one block to many places of a file by `copy_file_range`, and calls fsync once.
fn reflinks(bench: &Bench<'_>) -> Result<(), String> {
    let from = File::create_new(bench.root.join("source")).map_err(text)?;
    from.write_all_at(&[6; SMALL_LEN], 0).map_err(text)?;
    from.sync_all().map_err(text)?;
    let from = File::open(bench.root.join("source")).map_err(text)?;
    let to = File::create_new(bench.root.join("clones")).map_err(text)?;
    for number in 0..(REFLINKS * bench.plan.grown) as u64 {
        let (mut source, mut target) = (0, number * APART);
        let copied = copy_file_range(&from, Some(&mut source), &to, Some(&mut target), SMALL_LEN);
        if copied.map_err(text)? != SMALL_LEN {
            return Err("copy_file_range copied less than a block".to_owned());
        }
    }
    to.sync_all().map_err(text)
}
