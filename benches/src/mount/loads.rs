//! The loads, in the order in which they run. Some loads need the results of earlier loads.
//!
//! # What must hold
//!
//! - Loads of one part leave nothing behind for the next part.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, statat};

use super::Plan;
use super::shapes;
use super::sources::{self, Sources};
use crate::report::Better;
use crate::setup::sh;
use crate::work::{SMALL_LEN, pattern, sync, text};

const MIB: usize = 1 << 20;

/// The folder in which a load runs, and its sources.
pub(super) struct Bench<'a> {
    pub(super) root: PathBuf,
    pub(super) plan: &'a Plan,
    pub(super) sources: &'a Sources,
}

/// The work of a load.
pub(super) type Run = fn(&Bench<'_>) -> Result<(), String>;

/// One load.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    /// Loads of the same part depend on each other.
    pub(crate) part: &'static str,
    /// Files, MiB or transactions.
    pub(crate) count: usize,
    /// The counted unit.
    pub(crate) each: &'static str,
    /// Whether a rate is shown, or seconds.
    pub(crate) better: Better,
    /// Whether the kernel's caches are dropped before the load.
    pub(crate) is_cold: bool,
    /// Whether other loads of its part need its results.
    pub(super) is_base: bool,
    /// Whether the empty server cannot run it.
    pub(super) needs_volume: bool,
    pub(super) run: Run,
}

/// Loads that other loads depend on.
const BASES: [&str; 4] = ["create 4 KiB files", "untar + sync", "git clone + sync", "cp -a in"];

/// All loads of a plan.
pub(super) fn all(plan: &Plan) -> Vec<Load> {
    let (files, repo) = (plan.files, sources::repo_files(plan.files));
    let load = |name, part, count, better, is_cold, run| Load {
        name,
        part,
        count,
        each: "file",
        better,
        is_cold,
        is_base: BASES.contains(&name),
        needs_volume: false,
        run,
    };
    use Better::{Less, More};
    let mut loads = vec![
        load("create 4 KiB files", "small", files, More, false, create),
        load("stat warm", "small", files, More, false, stat),
        load("read small files warm", "small", files, More, false, read),
        load("read small files cold", "small", files, More, true, read),
        load("unlink", "small", files, More, false, unlink),
        load("untar + sync", "tar", files, Less, false, untar),
        load("tar out cold", "tar", files, Less, true, tar_out),
        load("rm -rf + sync", "tar", files, Less, false, remove_tree),
        load("git clone + sync", "git", repo, Less, false, clone),
        load("git checkout, there and back", "git", repo, Less, false, checkout),
        load("rm -rf of the clone + sync", "git", repo, Less, false, remove_clone),
        Load {
            each: "MiB",
            ..load("copy in + sync", "copy", plan.mib as usize, Less, false, copy_in)
        },
        load("cp -a in", "cp", files, Less, false, copy_tree_in),
        load("cp -a out cold", "cp", files, Less, true, copy_tree_out),
    ];
    // sqlite syncs the folder of its database. A sync of the mount's top is a commit.
    let databases: [(_, Run); 2] = [
        ("sqlite, deleted journal, FULL", sqlite_at_top),
        ("the same in a folder", sqlite_in_folder),
    ];
    loads.extend(databases.map(|(name, run)| Load {
        each: "transaction",
        ..load(name, "sqlite", plan.transactions, More, false, run)
    }));
    if plan.grown > 0 {
        loads.extend(shapes::all(plan.grown));
    }
    loads
}

/// Does something with each small file, by its path.
fn each_small(
    bench: &Bench<'_>,
    mut work: impl FnMut(usize, &Path) -> Result<(), String>,
) -> Result<(), String> {
    for dir in 0..bench.plan.files.div_ceil(sources::PER_DIR) {
        let folder = bench.root.join(format!("small/d{dir:03}"));
        let first = dir * sources::PER_DIR;
        for file in first..bench.plan.files.min(first + sources::PER_DIR) {
            work(file, &folder.join(format!("file-{file:05}.dat")))?;
        }
    }
    Ok(())
}

fn create(bench: &Bench<'_>) -> Result<(), String> {
    let mut data = pattern(7, SMALL_LEN);
    each_small(bench, |number, path| {
        if number % sources::PER_DIR == 0 {
            let folder = path.parent().ok_or("no folder")?;
            fs::create_dir_all(folder).map_err(text)?;
        }
        data[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let mut file = File::options().write(true).create_new(true).open(path).map_err(text)?;
        file.write_all(&data).map_err(text)
    })
}

/// As `ls -l` and `git` do: attributes without the time of birth, which costs a request of its own.
fn stat(bench: &Bench<'_>) -> Result<(), String> {
    for dir in fs::read_dir(bench.root.join("small")).map_err(text)? {
        let folder = File::open(dir.map_err(text)?.path()).map_err(text)?;
        let mut names = rustix::fs::Dir::read_from(&folder).map_err(text)?;
        while let Some(name) = names.read() {
            let name = name.map_err(text)?;
            let found = statat(&folder, name.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            let found = found.map_err(text)?;
            if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
                && found.st_size != SMALL_LEN as i64
            {
                return Err(format!("a file has {} bytes", found.st_size));
            }
        }
    }
    Ok(())
}

fn read(bench: &Bench<'_>) -> Result<(), String> {
    let mut room = vec![0; SMALL_LEN];
    each_small(bench, |number, path| {
        let mut file = File::open(path).map_err(text)?;
        file.read_exact(&mut room).map_err(text)?;
        let is_right = room[..8] == (number as u64).to_le_bytes();
        if is_right { Ok(()) } else { Err(format!("{}: wrong content", path.display())) }
    })
}

fn unlink(bench: &Bench<'_>) -> Result<(), String> {
    each_small(bench, |number, path| {
        fs::remove_file(path).map_err(text)?;
        let is_last = (number + 1) % sources::PER_DIR == 0 || number + 1 == bench.plan.files;
        let folder = path.parent().filter(|_| is_last);
        folder.map_or(Ok(()), |folder| fs::remove_dir(folder).map_err(text))
    })
}

fn untar(bench: &Bench<'_>) -> Result<(), String> {
    sh("tar", &["-C", &name(&bench.root), "-xf", &name(&bench.sources.tar)])?;
    sync(&bench.root)
}

fn tar_out(bench: &Bench<'_>) -> Result<(), String> {
    let root = name(&bench.root);
    sh("sh", &["-c", "tar -C \"$0\" -cf - tree | cat > /dev/null", &root]).map(drop)
}

fn remove_tree(bench: &Bench<'_>) -> Result<(), String> {
    remove(bench, "tree")
}

fn remove(bench: &Bench<'_>, what: &str) -> Result<(), String> {
    sh("rm", &["-rf", &name(&bench.root.join(what))])?;
    sync(&bench.root)
}

fn clone(bench: &Bench<'_>) -> Result<(), String> {
    let (from, to) = (name(&bench.sources.repo), name(&bench.root.join("clone")));
    sh("git", &["clone", "-q", "--no-hardlinks", &from, &to])?;
    sync(&bench.root)
}

fn checkout(bench: &Bench<'_>) -> Result<(), String> {
    let clone = name(&bench.root.join("clone"));
    for branch in ["other", "main"] {
        sh("git", &["-C", &clone, "checkout", "-q", branch])?;
    }
    Ok(())
}

fn remove_clone(bench: &Bench<'_>) -> Result<(), String> {
    remove(bench, "clone")
}

fn copy_in(bench: &Bench<'_>) -> Result<(), String> {
    sh("cp", &[&name(&bench.sources.large), &name(&bench.root.join("large"))])?;
    sync(&bench.root)?;
    let len = fs::metadata(bench.root.join("large")).map_err(text)?.len();
    if len != bench.plan.mib * MIB as u64 {
        return Err(format!("{len} bytes were copied"));
    }
    fs::remove_file(bench.root.join("large")).map_err(text)
}

fn copy_tree_in(bench: &Bench<'_>) -> Result<(), String> {
    sh("cp", &["-a", &name(&bench.sources.tree), &name(&bench.root)]).map(drop)
}

fn copy_tree_out(bench: &Bench<'_>) -> Result<(), String> {
    let out = bench.sources.folder.join("out");
    sh("cp", &["-a", &name(&bench.root.join("tree")), &name(&out)])?;
    fs::remove_dir_all(out).map_err(text)
}

fn sqlite_at_top(bench: &Bench<'_>) -> Result<(), String> {
    sqlite(bench, &bench.root)
}

fn sqlite_in_folder(bench: &Bench<'_>) -> Result<(), String> {
    let folder = bench.root.join("databases");
    fs::create_dir(&folder).map_err(text)?;
    sqlite(bench, &folder)
}

fn sqlite(bench: &Bench<'_>, folder: &Path) -> Result<(), String> {
    let script = format!(".read {}", name(&bench.sources.script));
    sh("sqlite3", &[&name(&folder.join("test.db")), &script]).map(drop)
}

pub(super) fn name(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
