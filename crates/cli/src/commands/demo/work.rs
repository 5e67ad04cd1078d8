//! The work of the demo on a volume: copies, comparisons, a large file, small files.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::Demo;
use super::access::Access;
use crate::exit::{Context, Exit, Failure, Result};
use crate::size::human;

/// Bytes written and read at a time.
const PIECE: usize = 1 << 20;
/// Length of a small file.
const SMALL: usize = 4096;
/// Small files in one directory.
const PER_DIR: u32 = 500;

/// The project's own sources, or the current folder instead.
pub(super) struct Sources {
    root: PathBuf,
    /// Paths below the root, each directory before its entries. A file comes with its length.
    entries: Vec<(String, Option<u64>)>,
}

impl Sources {
    /// Finds the sources that this program was built from, or uses the current folder instead.
    pub(super) fn find() -> Result<Self> {
        let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let root = match built_from.join("Cargo.toml").exists() {
            true => built_from,
            false => PathBuf::from("."),
        };
        let mut entries = Vec::new();
        collect(&root, "", &mut entries)?;
        Ok(Self { root, entries })
    }

    fn bytes(&self) -> u64 {
        self.entries.iter().filter_map(|(_, len)| *len).sum()
    }

    fn files(&self) -> u64 {
        self.entries.iter().filter(|(_, len)| len.is_some()).count() as u64
    }
}

/// Lists regular files and directories, without build output and without the data of git.
fn collect(root: &Path, below: &str, entries: &mut Vec<(String, Option<u64>)>) -> Result<()> {
    const ENTRIES_MAX: usize = 100_000;
    let dir = root.join(below);
    let mut names: Vec<_> = std::fs::read_dir(&dir)
        .context(|| dir.display().to_string())?
        .collect::<std::io::Result<Vec<_>>>()
        .context(|| dir.display().to_string())?;
    names.sort_by_key(std::fs::DirEntry::file_name);
    for entry in names {
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        let kind = entry.file_type().context(|| &name)?;
        if name == "target" || name == ".git" || entries.len() > ENTRIES_MAX {
            continue;
        }
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if kind.is_dir() {
            entries.push((path.clone(), None));
            collect(root, &path, entries)?;
        } else if kind.is_file() {
            let len = entry.metadata().context(|| &path)?.len();
            entries.push((path, Some(len)));
        }
    }
    Ok(())
}

/// Copies the sources in; returns their checksums as they were read.
pub(super) fn copy_in(
    demo: &Demo<'_>,
    access: &mut dyn Access,
    sources: &Sources,
) -> Result<Vec<u32>> {
    let bar = demo.ui.bytes_bar("copying", sources.bytes());
    let start = Instant::now();
    let mut sums = Vec::new();
    access.mkdir("project")?;
    for (path, len) in &sources.entries {
        demo.check_interrupt()?;
        let target = format!("project/{path}");
        if len.is_none() {
            access.mkdir(&target)?;
            continue;
        }
        let content = std::fs::read(sources.root.join(path)).context(|| path)?;
        access.write(&target, &content)?;
        sums.push(sum(&content));
        bar.add(content.len() as u64);
    }
    drop(bar);
    let took = start.elapsed();
    let what = format!("the project: {} files, {}", sources.files(), human(sources.bytes()));
    demo.step("copied in", &what, took, &per_second(sources.files(), took, "files"))?;
    Ok(sums)
}

/// Reads the sources back and compares.
pub(super) fn compare(
    demo: &Demo<'_>,
    access: &mut dyn Access,
    sources: &Sources,
    sums: Vec<u32>,
) -> Result<()> {
    let bar = demo.ui.bytes_bar("comparing", sources.bytes());
    let start = Instant::now();
    let files = sources.entries.iter().filter_map(|(path, len)| len.map(|len| (path, len)));
    for ((path, _), expected) in files.zip(sums) {
        demo.check_interrupt()?;
        let content = read_all(access, &format!("project/{path}"))?;
        if sum(&content) != expected {
            return Err(Failure::new(Exit::Corrupt, format!("{path}: reads back different")));
        }
        bar.add(content.len() as u64);
    }
    drop(bar);
    let took = start.elapsed();
    let what = format!("{} files read back, all equal", sources.files());
    demo.step("compared", &what, took, &per_second(sources.files(), took, "files"))
}

fn read_all(access: &mut dyn Access, path: &str) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut piece = vec![0; PIECE];
    loop {
        let read = access.read(path, content.len() as u64, &mut piece)?;
        content.extend_from_slice(&piece[..read]);
        if read < piece.len() {
            return Ok(content);
        }
    }
}

/// One large file, written and read from front to back.
pub(super) fn large_file(demo: &Demo<'_>, access: &mut dyn Access, len: u64) -> Result<()> {
    let len = len.next_multiple_of(PIECE as u64);
    let path = "large";
    let mut piece = vec![0; PIECE];
    let start = Instant::now();
    let bar = demo.ui.bytes_bar("writing", len);
    access.write(path, &[])?;
    for offset in (0..len).step_by(PIECE) {
        demo.check_interrupt()?;
        fill(&mut piece, offset);
        access.append(path, offset, &piece)?;
        bar.add(PIECE as u64);
    }
    access.sync()?;
    drop(bar);
    let took = start.elapsed();
    let what = format!("one file of {}, on disk", human(len));
    demo.step("wrote", &what, took, &bytes_per_second(len, took))?;

    let start = Instant::now();
    let bar = demo.ui.bytes_bar("reading", len);
    let mut found = vec![0; PIECE];
    for offset in (0..len).step_by(PIECE) {
        demo.check_interrupt()?;
        fill(&mut piece, offset);
        let read = access.read(path, offset, &mut found)?;
        if found[..read] != piece {
            return Err(Failure::new(Exit::Corrupt, format!("{path}: differs at {offset}")));
        }
        bar.add(PIECE as u64);
    }
    drop(bar);
    let took = start.elapsed();
    demo.step("read", "the same file, equal", took, &bytes_per_second(len, took))
}

/// Many small files: made, some renamed, some removed, counted.
pub(super) fn small_files(demo: &Demo<'_>, access: &mut dyn Access, files: u32) -> Result<()> {
    let name = |file: u32| format!("small/{}/{file:06}", file / PER_DIR);
    let mut content = vec![0; SMALL];

    let bar = demo.ui.count_bar("making", files.into());
    let start = Instant::now();
    access.mkdir("small")?;
    for file in 0..files {
        demo.check_interrupt()?;
        if file % PER_DIR == 0 {
            access.mkdir(&format!("small/{}", file / PER_DIR))?;
        }
        fill(&mut content, file.into());
        access.write(&name(file), &content)?;
        bar.add(1);
    }
    drop(bar);
    let took = start.elapsed();
    let what = format!("{files} files of {}", human(SMALL as u64));
    demo.step("made", &what, took, &per_second(files.into(), took, "files"))?;

    let start = Instant::now();
    let renamed = (0..files).step_by(3);
    let count = renamed.len() as u64;
    for file in renamed {
        demo.check_interrupt()?;
        access.rename(&name(file), &format!("{}-renamed", name(file)))?;
    }
    let took = start.elapsed();
    demo.step("renamed", &format!("{count} of them"), took, &per_second(count, took, "names"))?;

    let start = Instant::now();
    let removed = (1..files).step_by(3);
    let count = removed.len() as u64;
    for file in removed {
        demo.check_interrupt()?;
        access.remove(&name(file))?;
    }
    let took = start.elapsed();
    demo.step("removed", &format!("{count} of them"), took, &per_second(count, took, "names"))?;

    let mut found = 0;
    for dir in 0..files.div_ceil(PER_DIR) {
        found += access.count(&format!("small/{dir}"))? as u64;
    }
    let expected = u64::from(files) - count;
    if found != expected {
        let what = format!("{found} small files are left, not {expected}");
        return Err(Failure::new(Exit::Corrupt, what));
    }
    Ok(())
}

/// Fills a piece with content that depends on its place, so that a misplaced piece is detected.
fn fill(piece: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in piece.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

fn sum(content: &[u8]) -> u32 {
    buttress_format::crc32c_raw(!0, content)
}

fn per_second(count: u64, took: std::time::Duration, what: &str) -> String {
    format!("{:.0} {what}/s", count as f64 / took.as_secs_f64().max(1e-9))
}

fn bytes_per_second(bytes: u64, took: std::time::Duration) -> String {
    format!("{}/s", human((bytes as f64 / took.as_secs_f64().max(1e-9)) as u64))
}
