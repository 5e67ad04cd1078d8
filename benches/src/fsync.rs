//! Durable writes a second: 4 KiB and an fsync, again and again, by one thread and by several.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use buttress_fs::Inode;

use crate::{
    Args,
    report::{Better, Report},
    target::{Setup, Target},
    work::text,
};

const BLOCK: usize = 4096;
/// Blocks of the file that a thread writes to at random.
const BLOCKS: u64 = 4096;
/// How long each of the measurements takes.
const TIME: Duration = Duration::from_millis(1500);

/// A file that one thread works on.
enum Door {
    Library(Inode),
    Folder(fs::File),
}

impl Door {
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), String> {
        match self {
            Self::Library(inode) => inode.write_at(offset, data).map(drop).map_err(text),
            Self::Folder(file) => file.write_all_at(data, offset).map_err(text),
        }
    }

    fn sync(&self) -> Result<(), String> {
        match self {
            Self::Library(inode) => inode.sync().map_err(text),
            Self::Folder(file) => file.sync_all().map_err(text),
        }
    }
}

pub(crate) fn run(target: Target, args: &Args, report: &mut Report) -> Result<(), String> {
    for threads in [1, 8] {
        let setup = Setup::new(target, &args.dir)?;
        let library = if target.is_library() { Some(setup.open()?) } else { None };
        let open = |name: &str| -> Result<Door, String> {
            if let Some(library) = &library {
                let file = library.root().create(name.as_bytes(), 0o100_644, 0, 0, 0);
                return file.map(Door::Library).map_err(text);
            }
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false);
            options.open(setup.folder().join(name)).map(Door::Folder).map_err(text)
        };
        let mut random = Vec::new();
        let mut append = Vec::new();
        for thread in 0..threads {
            let door = open(&format!("random-{thread}"))?;
            for block in 0..BLOCKS / 64 {
                door.write(block * 64 * BLOCK as u64, &vec![thread as u8 + 1; 64 * BLOCK])?;
            }
            door.sync()?;
            random.push(door);
            append.push(open(&format!("append-{thread}"))?);
        }
        match &library {
            Some(library) => library.sync().map_err(text)?,
            None => crate::work::sync(setup.folder())?,
        }
        let rate = measure(&random, |seed, _| (seed >> 33) % BLOCKS)?;
        let what = format!("fsync of 4 KiB random writes, threads: {threads}");
        report.add(&what, "fsyncs/s", Better::More, target, rate);
        let rate = measure(&append, |_, count| count)?;
        let what = format!("fsync of 4 KiB appends, threads: {threads}");
        report.add(&what, "fsyncs/s", Better::More, target, rate);
        drop((random, append));
        if let Some(library) = library {
            library.close().map_err(text)?;
        }
    }
    Ok(())
}

/// Lets a thread for each file write blocks chosen by `block`, from a random number and a count.
fn measure(doors: &[Door], block: impl Fn(u64, u64) -> u64 + Sync) -> Result<f64, String> {
    let start = Instant::now();
    let work = &|door: &Door, thread: u64| -> Result<u64, String> {
        let mut state = thread.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut data = vec![0_u8; BLOCK];
        let mut count = 0;
        while start.elapsed() < TIME {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            data[..8].copy_from_slice(&state.to_le_bytes());
            door.write(block(state, count) * BLOCK as u64, &data)?;
            door.sync()?;
            count += 1;
        }
        Ok(count)
    };
    let counts: Result<Vec<u64>, String> = thread::scope(|scope| {
        let threads: Vec<_> = doors
            .iter()
            .enumerate()
            .map(|(index, door)| scope.spawn(move || work(door, index as u64 + 1)))
            .collect();
        threads.into_iter().map(|t| t.join().map_err(|_| "a thread panicked".to_owned())?).collect()
    });
    Ok(counts?.iter().sum::<u64>() as f64 / start.elapsed().as_secs_f64())
}
