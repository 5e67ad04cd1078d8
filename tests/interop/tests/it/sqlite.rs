//! sqlite works on a mount with a device that records its requests, and the power is cut at every
//! flush. Each transaction that sqlite reported as committed is there as a whole. A transaction
//! that was never begun must not appear.
//!
//! This process serves the mount, so that its device can be in memory; sqlite is a process of its
//! own. The library mounts the state after a cut, and the files of the database are copied out for
//! sqlite to recover. Linux mounts a part of the states, too. Linux replays our logs with its own
//! code, and must show the same files of the database. `BUTTRESS_SQLITE_TRANSACTIONS` sets the
//! number of transactions for each kind of journal.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{Filesystem, MakeOptions, MountOptions};
use buttress_interop::linux::{
    Images, can_mount_fuse, check, has_linux_btrfs, has_program, save, try_run,
};
use buttress_interop::scratch::Scratch;
use buttress_sim::{Crash, Log, campaign};
use buttress_volume::Volume;

/// A way in which sqlite keeps its transactions durable.
#[derive(Clone, Copy, Debug)]
struct Way {
    journal: &'static str,
    synchronous: &'static str,
    /// How many transactions sqlite itself may roll back although it reported them as committed.
    forgets: usize,
}

const WAYS: [Way; 5] = [
    Way { journal: "wal", synchronous: "FULL", forgets: 0 },
    Way { journal: "truncate", synchronous: "FULL", forgets: 0 },
    Way { journal: "persist", synchronous: "FULL", forgets: 0 },
    Way { journal: "delete", synchronous: "EXTRA", forgets: 0 },
    // Here the deletion of the journal is the commit, and sqlite does not sync the folder after it.
    Way { journal: "delete", synchronous: "FULL", forgets: 1 },
];

const MOUNTS: [&str; 4] = ["rw", "rw,notreelog", "rw,commit=1", "rw,compress=zstd"];

const DATABASE: &str = "rows.db";
/// The files of a database. The `-shm` file is left out, because sqlite makes it anew.
const FILES: [&str; 3] = [DATABASE, "rows.db-wal", "rows.db-journal"];

const ACCOUNTS: usize = 60;

const LEN: u64 = 192 << 20;

/// One in this many states is shown to Linux.
const SHOWN: u64 = 12;

/// A mount that this process serves. It ends when this value is dropped, also if a test fails.
struct Served {
    fs: Option<Filesystem>,
    serving: Option<buttress_fuse::Serving>,
    unmounter: buttress_fuse::Unmounter,
}

impl Served {
    fn new(device: Arc<dyn Device>, at: &Path, options: &str) -> Self {
        let options = MountOptions::parse(options).expect("options");
        let fs = Filesystem::open(vec![device], options).expect("a mount");
        let fuse = buttress_fuse::Options::default();
        let session = buttress_fuse::mount(fs.clone(), at, &fuse).expect("a mount");
        let unmounter = session.unmounter();
        Self { fs: Some(fs), serving: Some(session.start().expect("a thread")), unmounter }
    }

    fn end(mut self) {
        self.unmounter.unmount().expect("no program is left in it");
        self.serving.take().expect("once").wait().expect("the session ends well");
        self.fs.take().expect("once").close().expect("the last commit");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.serving.is_some() {
            drop(self.unmounter.unmount());
        }
    }
}

/// A sqlite process that gets one script after the other.
struct Sqlite {
    child: Child,
    input: ChildStdin,
    says: Lines<BufReader<ChildStdout>>,
}

impl Sqlite {
    fn new(database: &Path) -> Self {
        let mut child = Command::new("sqlite3")
            .args(["-batch", "-bail"])
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sqlite3 starts");
        let input = child.stdin.take().expect("piped");
        let says = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, input, says }
    }

    /// Sends a script to sqlite, and waits until sqlite has run the whole script.
    fn tell(&mut self, script: &str) {
        let text = format!("{script}\nSELECT 'that is done';\n");
        self.input.write_all(text.as_bytes()).expect("it listens");
        loop {
            let line = self.says.next().expect("sqlite goes on").expect("ASCII");
            if line == "that is done" {
                return;
            }
        }
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().expect("it ends").success(), "sqlite failed");
    }
}

/// The content of the database after a number of transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    balances: Vec<i64>,
    rows: usize,
}

fn text(row: usize) -> String {
    let mut rng = Rng::new(row as u64);
    let mut bytes = vec![0; rng.below(3000) as usize];
    rng.fill(&mut bytes);
    bytes.iter().map(|byte| char::from(b'a' + byte % 26)).collect()
}

/// Returns the next transaction, and the state after it. A transaction adds a row and moves a few
/// amounts.
fn transaction(rng: &mut Rng, state: &State) -> (String, State) {
    let mut next = state.clone();
    next.rows += 1;
    let mut script =
        format!("BEGIN; INSERT INTO rows VALUES ({}, '{}');", next.rows, text(next.rows));
    for _ in 0..rng.range(1..6) {
        let (from, to) = (rng.below(ACCOUNTS as u64) as usize, rng.below(ACCOUNTS as u64) as usize);
        let amount = rng.below(1000) as i64;
        next.balances[from] -= amount;
        next.balances[to] += amount;
        for (account, change) in [(from, -amount), (to, amount)] {
            script +=
                &format!("UPDATE accounts SET balance = balance + {change} WHERE id = {account};");
        }
    }
    (script + "COMMIT;", next)
}

/// Opens the database after a cut, as another program would, and returns its state.
fn recovered(folder: &Path) -> Result<State, String> {
    let database = folder.join(DATABASE);
    let said = try_run(
        "sqlite3",
        [
            "-bail",
            database.to_str().expect("ASCII"),
            "PRAGMA integrity_check; SELECT group_concat(balance) FROM (SELECT balance FROM accounts ORDER BY id); \
             SELECT id || ' ' || text FROM rows ORDER BY id;",
        ],
    )?;
    let mut lines = said.lines();
    if lines.next() != Some("ok") {
        return Err(format!("integrity_check: {said}"));
    }
    let numbers = lines.next().unwrap_or_default().split(',');
    let balances: Result<Vec<i64>, _> = numbers.map(str::parse).collect();
    let balances = balances.map_err(|error| format!("{error}: {said}"))?;
    let mut rows = 0;
    for line in lines {
        rows += 1;
        if line != format!("{rows} {}", text(rows)) {
            return Err(format!("row {rows} is {line:?}"));
        }
    }
    Ok(State { balances, rows })
}

/// Copies the files of the database from the state after a cut. Returns whether a journal was among
/// them.
fn copy_out(device: &Arc<dyn Device>, folder: &Path) -> Result<bool, String> {
    let options = MountOptions::parse("rw,noatime").expect("options");
    let fs = Filesystem::open(vec![Arc::clone(device)], options);
    let fs = fs.map_err(|error| format!("no mount: {error}"))?;
    drop(std::fs::remove_file(folder.join("rows.db-shm")));
    let mut journal = false;
    for name in FILES {
        let path = folder.join(name);
        drop(std::fs::remove_file(&path));
        let Ok(inode) = fs.root().lookup(name.as_bytes()) else { continue };
        let mut bytes = vec![0; inode.attr().size as usize];
        inode.read_at(0, &mut bytes).map_err(|error| format!("{name}: {error}"))?;
        std::fs::write(&path, bytes).expect("a file");
        journal |= name.ends_with("-journal");
    }
    // A change makes this mount write a torn superblock copy again.
    fs.root()
        .set_xattr(b"user.seen", b"1", buttress_fs::XattrFlags::default())
        .map_err(|error| error.to_string())?;
    fs.close().map_err(|error| error.to_string())?;
    Ok(journal)
}

/// The files of the database as they lie in a folder.
fn files(folder: &Path) -> Vec<Option<Vec<u8>>> {
    FILES.iter().map(|name| std::fs::read(folder.join(name)).ok()).collect()
}

/// Linux mounts the state after a cut. Returns the files that Linux shows, or `None` if the cut
/// tore the superblock. The volume is sound afterwards.
fn shown_by_linux(crash: &Crash, images: &Images) -> Option<Vec<Option<Vec<u8>>>> {
    let found = &crash.devices[0];
    // Linux reads only the first copy of the superblock.
    Volume::read_superblock_mirror(found, 0).ok()?;
    save(found, images.path());
    let mount = images.mount("");
    let shown = files(mount.path());
    mount.unmount();
    check(images.path());
    Some(shown)
}

/// Both checkers find nothing on the volume after the next mount.
fn check_volume(device: &Arc<dyn Device>, folder: &Path, with_linux: bool) {
    let options = buttress_check::Options::thorough();
    let report = buttress_check::check_devices(
        vec![Arc::clone(device)],
        &options,
        &buttress_check::NoProgress,
    );
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    assert!(report.is_clean(), "{}", report.to_text());
    if with_linux && has_program("btrfs") {
        let path = folder.join("image");
        save(&**device, &path);
        check(&path);
        std::fs::remove_file(path).expect("it was just made");
    }
}

/// The counts of one way.
#[derive(Default)]
struct Seen {
    states: usize,
    /// The states that Linux was shown.
    shown: usize,
    acknowledged: usize,
    forgotten: usize,
}

fn power_is_cut(way: Way, mount: &str, transactions: usize, seed: u64) -> Seen {
    let scratch = Scratch::new();
    let base = MemoryDevice::new(LEN);
    let make = MakeOptions { seed: Some(seed), ..MakeOptions::default() };
    Filesystem::make(&base, &make).expect("a volume");
    let log = Log::new();
    let device = log.device(&base, 512);
    let at = scratch.join("mount");
    std::fs::create_dir(&at).expect("a folder");
    let served = Served::new(Arc::clone(&device) as Arc<dyn Device>, &at, mount);

    let mut sqlite = Sqlite::new(&at.join(DATABASE));
    let Way { journal, synchronous, .. } = way;
    let pad = "p".repeat(200);
    sqlite.tell(&format!(
        "PRAGMA journal_mode={journal}; PRAGMA synchronous={synchronous}; PRAGMA wal_autocheckpoint=12;
         CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT);
         CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER, pad TEXT);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {ACCOUNTS} - 1)
         INSERT INTO accounts SELECT i, 0, '{pad}' FROM n;"
    ));
    // From here on, the initial content must be there, too.
    std::fs::File::open(&at).and_then(|top| top.sync_all()).expect("sync");
    log.start(&[&device]);
    let mut rng = Rng::new(seed);
    let mut states = vec![State { balances: vec![0; ACCOUNTS], rows: 0 }];
    for done in 1..=transactions {
        let (script, next) = transaction(&mut rng, &states[done - 1]);
        sqlite.tell(&script);
        states.push(next);
        log.mark(done as u64);
        match done % 9 {
            4 => sqlite.tell("VACUUM;"),
            7 if journal == "wal" => sqlite.tell("PRAGMA wal_checkpoint(TRUNCATE);"),
            _ => {}
        }
    }
    sqlite.end();
    served.end();

    let mut seen = Seen { acknowledged: transactions, ..Seen::default() };
    let images = has_linux_btrfs().then(|| Images::new(1, LEN));
    let (singles, draws) = if transactions > 6 { (5, 2) } else { (2, 1) };
    seen.states = log.intervals(&mut rng.clone(), singles, draws, |crash| {
        let Crash { event, draw, mark, .. } = crash;
        let done = mark.unwrap_or(0) as usize;
        let about =
            format!("{way:?}, {mount}, seed {seed}, event {event}, draw {draw}, {done} done");
        let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
        let has_journal =
            copy_out(&device, scratch.path()).unwrap_or_else(|what| panic!("{about}: {what}"));
        if let Some(images) = images.as_ref().filter(|_| rng.chance(1, SHOWN))
            && let Some(theirs) = shown_by_linux(crash, images)
        {
            seen.shown += 1;
            let ours = files(scratch.path());
            for (name, (our, their)) in FILES.iter().zip(ours.iter().zip(&theirs)) {
                let lens = [our, their].map(|bytes| bytes.as_ref().map(Vec::len));
                assert!(our == their, "{about}: {name} differs, {lens:?} bytes by us and Linux");
            }
        }
        let found = recovered(scratch.path()).unwrap_or_else(|what| panic!("{about}: {what}"));
        assert!(found.rows <= done + 1, "{about}: {} rows", found.rows);
        assert!(found.rows + way.forgets >= done, "{about}: {} rows", found.rows);
        assert!(found == states[found.rows.min(transactions)], "{about}: a part of a transaction");
        if found.rows < done {
            // sqlite rolled the transaction back because the deletion of a journal had not been
            // synced.
            assert!(has_journal, "{about}: {} rows without a journal", found.rows);
            seen.forgotten += 1;
        }
        let drawn = rng.chance(1, 15);
        if campaign::always_or(drawn) {
            check_volume(&device, scratch.path(), drawn && rng.chance(1, 4));
        }
    });
    seen
}

#[test]
fn sqlite_keeps_commits_over_power_cuts() {
    if !can_mount_fuse() || !rustix::process::geteuid().is_root() {
        return;
    }
    let round = campaign::round();
    let set = std::env::var("BUTTRESS_SQLITE_TRANSACTIONS").ok();
    let set = set.map(|text| text.parse::<usize>().expect("a number"));
    // A round of a long search tests one way thoroughly.
    let ways = match round {
        0 => &WAYS[..],
        _ => &WAYS[round as usize % WAYS.len()..][..1],
    };
    let transactions = set.unwrap_or(if round == 0 { 3 } else { 20 });
    for (number, way) in ways.iter().enumerate() {
        let mount = MOUNTS[(round as usize / WAYS.len() + number) % MOUNTS.len()];
        let seen = power_is_cut(*way, mount, transactions, round + 1);
        let Seen { states, shown, acknowledged, forgotten } = seen;
        eprintln!(
            "{way:?} on {mount}: {states} states, {forgotten} of them one short, {shown} before Linux"
        );
        campaign::count("shown", shown);
        campaign::count("states", states);
        campaign::count("acknowledged", acknowledged);
        assert!(states > 10 * transactions, "only {states} states were seen");
    }
}
