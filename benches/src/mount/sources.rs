//! The sources that loads copy, unpack and clone. They are made once, in memory.
//!
//! # What must hold
//!
//! - Dropped sources leave nothing behind.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::Plan;
use crate::setup::sh;
use crate::work::{SMALL_LEN, pattern, text};

/// Files of a folder.
pub(super) const PER_DIR: usize = 300;
/// Files of a folder of the repository.
const REPO_PER_DIR: usize = 25;

/// Sources, in a folder of their own.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) folder: PathBuf,
    /// A folder `tree` of small files, and an archive of it.
    pub(super) tree: PathBuf,
    pub(super) tar: PathBuf,
    /// A repository with the branches `main` and `other`.
    pub(super) repo: PathBuf,
    pub(super) large: PathBuf,
    /// The script for sqlite.
    pub(super) script: PathBuf,
}

/// Files of the repository.
pub(super) fn repo_files(files: usize) -> usize {
    (files / 3).max(REPO_PER_DIR)
}

impl Sources {
    /// Makes the sources that these parts of the loads need.
    pub(super) fn make(plan: &Plan, parts: &[&str]) -> Result<Self, String> {
        let folder = plan.dir.join(format!("buttress-bench-{}.sources", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(text)?;
        let at = |name: &str| folder.join(name);
        let sources = Self {
            tree: at("tree"),
            tar: at("tree.tar"),
            repo: at("repo.git"),
            large: at("large"),
            script: at("script.sql"),
            folder,
        };
        sources.fill(plan, parts)?;
        Ok(sources)
    }

    fn fill(&self, plan: &Plan, parts: &[&str]) -> Result<(), String> {
        let has = |part: &str| parts.contains(&part);
        let files = if has("tar") || has("cp") { plan.files } else { 1 };
        for file in 0..files {
            let folder = self.tree.join(format!("d{:03}", file / PER_DIR));
            if file % PER_DIR == 0 {
                fs::create_dir_all(&folder).map_err(text)?;
            }
            let path = folder.join(format!("file-{file:05}.dat"));
            fs::write(path, pattern(file, SMALL_LEN)).map_err(text)?;
        }
        let folder = self.folder.to_string_lossy();
        sh("tar", &["-C", &folder, "-cf", &self.tar.to_string_lossy(), "tree"])?;
        let large = File::create(&self.large).map_err(text)?;
        let piece = pattern(3, 1 << 20);
        for at in 0..if has("copy") { plan.mib } else { 0 } {
            std::os::unix::fs::FileExt::write_all_at(&large, &piece, at << 20).map_err(text)?;
        }
        fs::write(&self.script, script(plan.transactions)).map_err(text)?;
        if has("git") { self.make_repo(plan) } else { Ok(()) }
    }

    /// Text files, half of which differ between two branches.
    fn make_repo(&self, plan: &Plan) -> Result<(), String> {
        let work = self.folder.join("work");
        fs::create_dir_all(&work).map_err(text)?;
        let files = repo_files(plan.files);
        let path = |file: usize| {
            let dir = file / REPO_PER_DIR;
            work.join(format!("mod{:02}/sub{:02}/file{file:05}.c", dir % 20, dir / 20))
        };
        let git = |args: &[&str]| {
            let at = work.to_string_lossy();
            let author =
                ["-C", &at, "-c", "user.name=b", "-c", "user.email=b@b", "-c", "gc.auto=0"];
            sh("git", &[&author, args].concat())
        };
        git(&["init", "-q", "-b", "main"])?;
        for file in 0..files {
            let folder = path(file);
            fs::create_dir_all(folder.parent().ok_or("no folder")?).map_err(text)?;
            fs::write(folder, words(file, 500 + file * 7919 % 11_000)).map_err(text)?;
        }
        git(&["add", "-A"])?;
        git(&["commit", "-q", "-m", "one"])?;
        git(&["checkout", "-q", "-b", "other"])?;
        for file in (0..files).step_by(2) {
            fs::write(path(file), words(file + files, 800 + file * 7919 % 11_000)).map_err(text)?;
        }
        git(&["add", "-A"])?;
        git(&["commit", "-q", "-m", "two"])?;
        git(&["checkout", "-q", "main"])?;
        let (from, to) = (work.to_string_lossy(), self.repo.to_string_lossy());
        sh("git", &["clone", "-q", "--bare", &from, &to])?;
        fs::remove_dir_all(&work).map_err(text)
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Lines of words, about `len` bytes.
fn words(seed: usize, len: usize) -> String {
    let mut out = String::with_capacity(len + 80);
    for (index, byte) in pattern(seed, len / 6 + 1).into_iter().enumerate() {
        // Writing into a string cannot fail.
        let _ = write!(out, "w{byte:03}{}", if index % 10 == 9 { ";\n" } else { " " });
    }
    out
}

/// Transactions of one row each, in a table with an index.
fn script(transactions: usize) -> String {
    let mut out = "PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL;\n\
                   CREATE TABLE t(id INTEGER PRIMARY KEY, k TEXT, v TEXT);\n\
                   CREATE INDEX i ON t(k);\n"
        .to_owned();
    let value = "x".repeat(100);
    for row in 0..transactions {
        let key = row as u64 * 2_654_435_761 % (1 << 32);
        let _ = writeln!(out, "INSERT INTO t(k,v) VALUES('key-{key:010}','{value}');");
    }
    out
}

/// Makes the kernel drop its caches of all file systems.
pub(crate) fn drop_caches() -> Result<(), String> {
    rustix::fs::sync();
    let switch = Path::new("/proc/sys/vm/drop_caches");
    fs::write(switch, "3").map_err(|error| format!("{}: {error}", switch.display()))
}
