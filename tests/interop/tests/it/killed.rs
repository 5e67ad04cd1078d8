//! The program is killed while fio, sqlite, tar and a counter work on its mount. After the next
//! mount everything that was acknowledged as durable is there, and both checkers find nothing.
//!
//! The same volume is used for all kills. `BUTTRESS_KILLS` sets their number.

mod mounts;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use buttress_base::Rng;
use buttress_interop::linux::{Images, can_mount_fuse, has_program, run};
use buttress_interop::program::{Mounted, buttress};
use buttress_interop::scratch::Scratch;
use buttress_sim::campaign;

const FILES: u64 = 12;

/// The data that was acknowledged, over all kills.
#[derive(Default)]
struct Word {
    /// For each file of the counter: its durable version, and the version that was begun.
    files: BTreeMap<u64, (u64, u64)>,
    /// The last row that sqlite reported as committed.
    row: u64,
    /// Bytes that were appended.
    appended: u64,
    /// Trees and files that were complete and synced.
    trees: Vec<String>,
    verified: Vec<String>,
}

fn bytes(file: u64, version: u64) -> Vec<u8> {
    let mut rng = Rng::new(file << 32 | version);
    let mut bytes = vec![0; 500 + rng.below(40_000) as usize];
    rng.fill(&mut bytes);
    bytes
}

/// Writes new versions of files, over the old version or beside it, until the mount is gone.
fn count(mount: &Path, rng: &mut Rng, word: &Mutex<Word>) {
    // The folder is opened while the volume is mounted on it. After the end of the mount, a sync of
    // the folder below would succeed although it proves nothing.
    let Ok(folder) = File::open(mount) else { return };
    let mut step = || -> std::io::Result<()> {
        let file = rng.below(FILES);
        let (durable, begun) =
            word.lock().expect("no panic").files.get(&file).copied().unwrap_or((0, 0));
        let next = begun + 1;
        word.lock().expect("no panic").files.insert(file, (durable, next));
        let (path, beside) =
            (mount.join(format!("count-{file}")), mount.join(format!("beside-{file}")));
        // As an editor does: a new file is synced and renamed over the old one, and the folder is
        // synced.
        let mut out = File::create(&beside)?;
        out.write_all(&bytes(file, next))?;
        out.sync_all()?;
        std::fs::rename(&beside, &path)?;
        if rng.chance(1, 2) {
            // This fsync of the file makes the new name durable as well.
            out.sync_all()?;
        } else {
            folder.sync_all()?;
        }
        word.lock().expect("no panic").files.insert(file, (next, next));
        Ok(())
    };
    while step().is_ok() {}
}

/// Appends to one file in place, until the mount is gone.
fn append(mount: &Path, word: &Mutex<Word>) {
    let work = || -> std::io::Result<()> {
        let path = mount.join("appended");
        let file = File::options().create(true).write(true).truncate(false).open(path)?;
        loop {
            let at = word.lock().expect("no panic").appended;
            let bytes: Vec<u8> = (at..at + 3000).map(|byte| (byte % 251) as u8).collect();
            file.write_all_at(&bytes, at)?;
            file.sync_data()?;
            word.lock().expect("no panic").appended = at + 3000;
        }
    };
    // The work ends with an error when the mount is gone.
    let _ = work();
}

fn sqlite(mount: &Path, wal: bool) -> Child {
    // If sqlite deleted its journal, it would ignore that the sync of the folder fails on a dead
    // mount. The transaction would be rolled back, although sqlite had reported it as committed.
    let journal = if wal { "wal" } else { "truncate" };
    let mut child = Command::new("sqlite3")
        .arg(mount.join("rows.db"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("sqlite3 starts");
    let mut script = format!(
        ".bail on\nPRAGMA synchronous=FULL; PRAGMA journal_mode={journal};\n\
         CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, text TEXT);\n"
    );
    for _ in 0..4000 {
        script += "INSERT INTO rows (text) VALUES (hex(randomblob(300))); \
                   SELECT 'row ' || last_insert_rowid();\n";
    }
    let mut input = child.stdin.take().expect("piped");
    std::thread::spawn(move || {
        let _ = input.write_all(script.as_bytes());
    });
    child
}

fn fio_words(file: &str) -> String {
    format!(
        "fio --name={file} --filename={file} --rw=randwrite --bs=4k --size=3m --ioengine=psync \\
         --verify=crc32c --verify_state_save=0 --randseed=7 --output=/dev/null"
    )
}

fn shell(mount: &Path, script: &str) -> Child {
    let script = format!("cd '{}' && {script}", mount.display());
    let mut command = Command::new("bash");
    command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("bash starts")
}

/// Works on the mount, and kills the server at a random moment.
fn live(mounted: Mounted, source: &Path, rng: &mut Rng, number: u64, word: &Mutex<Word>) {
    let mount = mounted.path().to_owned();
    let (tree, verified) = (format!("tree-{number}"), format!("fio-{number}"));
    let tar = format!("mkdir {tree} && tar xf '{}' -C {tree} && sync .", source.display());
    let mut tar = shell(&mount, &tar);
    let fio = format!("{} --fsync=32 --end_fsync=1 --do_verify=0", fio_words(&verified));
    let mut fio = shell(&mount, &fio);
    let mut sqlite = sqlite(&mount, number.is_multiple_of(2));
    let rows = sqlite.stdout.take().expect("piped");
    let mut own = Rng::new(rng.next_u64());
    std::thread::scope(|scope| {
        scope.spawn(|| count(&mount, &mut own, word));
        scope.spawn(|| append(&mount, word));
        scope.spawn(|| {
            for line in BufReader::new(rows).lines().map_while(Result::ok) {
                if let Some(row) = line.strip_prefix("row ").and_then(|row| row.parse().ok()) {
                    word.lock().expect("no panic").row = row;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(150 + rng.below(1500)));
        mounted.kill();
    });
    let _ = sqlite.wait();
    let mut word = word.lock().expect("no panic");
    if tar.wait().expect("it ends").success() {
        word.trees.push(tree);
    }
    if fio.wait().expect("it ends").success() {
        word.verified.push(verified);
    }
}

/// Checks the content after the next mount.
fn verify(mount: &Path, source: &Path, word: &mut Word, about: &str) {
    for (file, (durable, begun)) in &mut word.files {
        let read = std::fs::read(mount.join(format!("count-{file}")));
        let error = read.as_ref().err().map(ToString::to_string);
        let found = read.unwrap_or_default();
        let is =
            (*durable..=*begun).find(|version| *version > 0 && bytes(*file, *version) == found);
        let none = *durable == 0 && found.is_empty();
        let other = (1..*durable).rev().find(|version| bytes(*file, *version) == found);
        assert!(
            is.is_some() || none,
            "{about}: count-{file} is none of {durable} to {begun}, but {} bytes, {other:?}, {error:?}",
            found.len()
        );
        *durable = is.unwrap_or(0);
    }
    let found = std::fs::read(mount.join("appended")).unwrap_or_default();
    assert!(
        found.len() as u64 >= word.appended,
        "{about}: {} of {} bytes",
        found.len(),
        word.appended
    );
    let durable = &found[..word.appended as usize];
    assert!(
        durable.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8),
        "{about}: appended"
    );
    let database = mount.join("rows.db");
    if word.row > 0 {
        let text = database.to_str().expect("ASCII");
        let said =
            run("sqlite3", [text, "PRAGMA integrity_check; SELECT max(id), count(*) FROM rows;"]);
        let rows = said.trim().strip_prefix("ok\n").unwrap_or_else(|| panic!("{about}: {said}"));
        let (last, count) = rows.split_once('|').expect("two numbers");
        assert_eq!(last, count, "{about}: rows are lacking");
        let last: u64 = last.parse().expect("a number");
        assert!(last >= word.row, "{about}: {last} rows, {} were committed", word.row);
        word.row = last;
    }
    for tree in &word.trees {
        let script = format!("tar df '{}' -C {tree}", source.display());
        let ended = shell(mount, &script).wait().expect("it ends");
        assert!(ended.success(), "{about}: {tree} differs from its archive");
    }
    for file in &word.verified {
        let ended =
            shell(mount, &format!("{} --verify_only", fio_words(file))).wait().expect("it ends");
        assert!(ended.success(), "{about}: fio does not find what it wrote to {file}");
    }
}

/// An archive of some hundred files.
fn archive(scratch: &Scratch) -> std::path::PathBuf {
    let folder = scratch.join("tree");
    let mut rng = Rng::new(5);
    for dir in 0..12 {
        let dir = folder.join(format!("dir-{dir}"));
        std::fs::create_dir_all(&dir).expect("a folder");
        for file in 0..25 {
            let mut bytes = vec![0; rng.below(20_000) as usize];
            rng.fill(&mut bytes);
            std::fs::write(dir.join(format!("file-{file}")), bytes).expect("a file");
        }
        std::os::unix::fs::symlink("file-1", dir.join("link")).expect("a link");
    }
    let path = scratch.join("tree.tar");
    run("tar", ["cf", path.to_str().expect("ASCII"), "-C", folder.to_str().expect("ASCII"), "."]);
    path
}

/// Checks the volume before any replay of the log. Copies of the superblock may be a commit behind:
/// the next commit writes them.
fn check_volume(images: &[std::path::PathBuf], about: &str) {
    let report = buttress_check::check_images(images, &buttress_check::Options::thorough());
    let report = report.unwrap_or_else(|error| panic!("{about}: {error}"));
    let wrong = report.issues.iter().filter(|issue| {
        issue.severity() == buttress_check::Severity::Error
            && !issue.code().starts_with("super-copy")
    });
    assert_eq!(wrong.count(), 0, "{about}: {}", report.to_text());
}

#[test]
fn killed_in_the_midst_of_everything() {
    let programs = ["fio", "sqlite3", "tar", "umount"];
    if !can_mount_fuse()
        || !rustix::process::geteuid().is_root()
        || !programs.iter().all(|p| has_program(p))
    {
        return;
    }
    let by_default = if campaign::round() == 0 { 20 } else { 10 };
    let kills =
        std::env::var("BUTTRESS_KILLS").map_or(by_default, |n| n.parse().expect("a number"));
    let images = Images::new(1, 0);
    std::fs::remove_file(images.path()).expect("it was just made");
    buttress(["mkfs", images.path().to_str().expect("ASCII"), "--size", "1G"]);
    let scratch = Scratch::new();
    let source = archive(&scratch);
    let mut rng = Rng::new(campaign::round());
    let word = Mutex::new(Word::default());
    let options = ["", "commit=1", "notreelog", "commit=300"];
    // Requests by io_uring end in another way when the program is killed. If the kernel has no
    // io_uring for FUSE, the two ways are the same.
    let ways = ["io_uring", "noio_uring", "noio_uring", "io_uring"];
    for number in 0..kills {
        let about = format!("round {}, kill {number}", campaign::round());
        let way = ways[number as usize / options.len() % ways.len()];
        let options = options[number as usize % options.len()];
        let mounted = Mounted::new(images.path(), &format!("{way},{options}"));
        live(mounted, &source, &mut rng, number, &word);
        check_volume(images.paths(), &about);
        let mounted = Mounted::new(images.path(), "");
        verify(mounted.path(), &source, &mut word.lock().expect("no panic"), &about);
        // The volume has no space for the trees and files of all kills, so they are removed here.
        {
            let mut held = word.lock().expect("no panic");
            held.trees.clear();
            held.verified.clear();
        }
        mounted.shell("rm -rf tree-* fio-*; truncate -s 0 appended");
        word.lock().expect("no panic").appended = 0;
        mounted.unmount();
        images.check_volume();
        if number % 4 == 2 && has_program("btrfs") {
            images.check();
        }
    }
    let word = word.lock().expect("no panic");
    let versions: u64 = word.files.values().map(|(durable, _)| *durable).sum();
    campaign::count("kills", kills as usize);
    campaign::count("acknowledged", (versions + word.row) as usize);
    assert!(versions > 0 && word.row > 0, "no program got anything done");
}
