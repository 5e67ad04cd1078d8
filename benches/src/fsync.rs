//! Durable writes a second: one thread or several write 4 KiB and call fsync, again and again. If
//! the subject has a folder, transactions of sqlite are measured, too.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use buttress_fs::{Inode, NewInode, SetAttr};

use crate::{
    report::{Better, Report},
    setup::Setup,
    work::{Job, text},
};

const BLOCK: usize = 4096;
/// Blocks of the file that a thread writes over at random.
const BLOCKS: u64 = 4096;
/// Blocks of the file, a hole at first, that a thread writes to at random, as `fio` does with
/// `--fallocate=none`.
const HOLES: u64 = 65_536;
/// How long each of the measurements takes.
const TIME: Duration = Duration::from_millis(1500);
/// Transactions of one measurement of sqlite.
const TRANSACTIONS: usize = 2000;

/// A file that one thread works on.
enum OpenFile {
    Library(Inode),
    Folder(fs::File),
}

impl OpenFile {
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), String> {
        match self {
            Self::Library(inode) => inode.write_at(offset, data).map(drop).map_err(text),
            Self::Folder(file) => file.write_all_at(data, offset).map_err(text),
        }
    }

    /// Makes the file `size` bytes long, as one hole.
    fn stretch(&self, size: u64) -> Result<(), String> {
        match self {
            Self::Library(inode) => {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                inode.set_attr(&set).map(drop).map_err(text)
            }
            Self::Folder(file) => file.set_len(size).map_err(text),
        }
    }

    fn sync(&self) -> Result<(), String> {
        match self {
            Self::Library(inode) => inode.sync().map_err(text),
            Self::Folder(file) => file.sync_all().map_err(text),
        }
    }
}

pub(crate) fn run(job: &Job, report: &mut Report) -> Result<(), String> {
    let target = job.target;
    for &threads in &job.threads {
        let setup = Setup::new(target, &job.dir)?;
        let library = if target.is_library() { Some(setup.open()?) } else { None };
        let open = |name: &str| -> Result<OpenFile, String> {
            if let Some(library) = &library {
                let file = library.root().create(name.as_bytes(), NewInode::file(0o644));
                return file.map(OpenFile::Library).map_err(text);
            }
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false);
            options.open(setup.folder().join(name)).map(OpenFile::Folder).map_err(text)
        };
        let mut random = Vec::new();
        let mut append = Vec::new();
        let mut holes = Vec::new();
        for thread in 0..threads {
            let file = open(&format!("random-{thread}"))?;
            for block in 0..BLOCKS / 64 {
                file.write(block * 64 * BLOCK as u64, &vec![thread as u8 + 1; 64 * BLOCK])?;
            }
            file.sync()?;
            random.push(file);
            append.push(open(&format!("append-{thread}"))?);
            let file = open(&format!("holes-{thread}"))?;
            file.stretch(HOLES * BLOCK as u64)?;
            holes.push(file);
        }
        match &library {
            Some(library) => library.sync().map_err(text)?,
            None => crate::work::sync(setup.folder())?,
        }
        let rate = measure(&holes, |seed, _| (seed >> 33) % HOLES)?;
        let what = format!("fsync of 4 KiB random writes, threads: {threads}");
        report.add(&what, "fsyncs/s", Better::More, target, rate);
        let rate = measure(&random, |seed, _| (seed >> 33) % BLOCKS)?;
        let what = format!("fsync of 4 KiB random overwrites, threads: {threads}");
        report.add(&what, "fsyncs/s", Better::More, target, rate);
        let rate = measure(&append, |_, count| count)?;
        let what = format!("fsync of 4 KiB appends, threads: {threads}");
        report.add(&what, "fsyncs/s", Better::More, target, rate);
        drop((random, append, holes));
        if let Some(library) = library {
            library.close().map_err(text)?;
        }
    }
    if target.is_library() {
        return Ok(());
    }
    let setup = Setup::new(target, &job.dir)?;
    for journal in ["wal", "delete"] {
        let rate = sqlite(&setup.folder().join(format!("{journal}.db")), journal)?;
        let what = format!("sqlite transactions, journal_mode={journal}, synchronous=full");
        report.add(&what, "transactions/s", Better::More, target, rate);
    }
    Ok(())
}

/// Transactions a second, each of one row. The time includes the start of sqlite, a few
/// milliseconds.
fn sqlite(database: &Path, journal: &str) -> Result<f64, String> {
    let run = |script: &str| -> Result<(), String> {
        let mut child = Command::new("sqlite3")
            .args(["-bail".as_ref(), database.as_os_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("sqlite3: {error}"))?;
        let mut stdin = child.stdin.take().ok_or("sqlite3 has no input")?;
        stdin.write_all(script.as_bytes()).map_err(text)?;
        drop(stdin);
        let status = child.wait().map_err(text)?;
        if status.success() { Ok(()) } else { Err(format!("sqlite3: {status}")) }
    };
    let pragmas = format!("pragma journal_mode={journal}; pragma synchronous=full;\n");
    run(&format!("{pragmas}create table t(id integer primary key, text);\n"))?;
    let mut script = pragmas;
    for row in 0..TRANSACTIONS {
        writeln!(script, "insert into t values({row}, hex(randomblob(50)));").map_err(text)?;
    }
    let start = Instant::now();
    run(&script)?;
    Ok(TRANSACTIONS as f64 / start.elapsed().as_secs_f64())
}

/// Lets one thread for each file write blocks. `block` chooses a block from a random number and the
/// number of writes that the thread has made.
fn measure(files: &[OpenFile], block: impl Fn(u64, u64) -> u64 + Sync) -> Result<f64, String> {
    let start = Instant::now();
    let work = &|file: &OpenFile, thread: u64| -> Result<u64, String> {
        let mut state = thread.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut data = vec![0_u8; BLOCK];
        let mut count = 0;
        while start.elapsed() < TIME {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            data[..8].copy_from_slice(&state.to_le_bytes());
            file.write(block(state, count) * BLOCK as u64, &data)?;
            file.sync()?;
            count += 1;
        }
        Ok(count)
    };
    let counts: Result<Vec<u64>, String> = thread::scope(|scope| {
        let threads: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(index, file)| scope.spawn(move || work(file, index as u64 + 1)))
            .collect();
        threads.into_iter().map(|t| t.join().map_err(|_| "a thread panicked".to_owned())?).collect()
    });
    Ok(counts?.iter().sum::<u64>() as f64 / start.elapsed().as_secs_f64())
}
