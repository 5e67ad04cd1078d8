//! Transactions and read snapshots: all or nothing, for readers and after a crash.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use buttress::{CreateOptions, Device, ErrorKind, Filesystem, MemoryDevice, OpenOptions};
use buttress_base::Rng;
use buttress_fs::{NameChange, NameDir};
use buttress_sim::Log;
use buttress_test_program::unless_busy;

const SIZE: u64 = 128 << 20;

fn volume() -> Filesystem {
    CreateOptions::new(SIZE).create_on(Arc::new(MemoryDevice::new(SIZE))).expect("made")
}

/// The project's checker finds nothing wrong.
fn check(device: &Arc<dyn Device>, when: &str) {
    let options = buttress_check::Options::thorough();
    let devices = vec![Arc::clone(device)];
    let report = buttress_check::check_devices(devices, &options, &buttress_check::NoProgress);
    let report = report.expect("a volume");
    let wrong = report.issues.iter().any(|issue| {
        // A torn superblock copy is no fault, because the next commit rewrites the copy.
        issue.severity() == buttress_check::Severity::Error
            && !issue.code().starts_with("super-copy")
    });
    assert!(!wrong, "{when}: {}", report.to_text());
}

/// Checks that `btrfs check` passes an image and that Linux reads this content, if both are
/// available.
fn check_by_linux(image: &Path, files: &[(&str, &[u8])]) {
    let Ok(checked) =
        Command::new("btrfs").args(["check", "--check-data-csum"]).arg(image).output()
    else {
        return eprintln!("SKIPPED: btrfs-progs is not installed");
    };
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let folder = tempfile::tempdir().expect("a folder");
    let mounted = Command::new("mount")
        .args(["-t", "btrfs", "-o", "loop,ro"])
        .args([image, folder.path()])
        .output()
        .is_ok_and(|run| run.status.success());
    if !mounted {
        return eprintln!("SKIPPED: btrfs cannot be mounted here");
    }
    let found: Vec<_> =
        files.iter().map(|(path, _)| std::fs::read(folder.path().join(path)).ok()).collect();
    let ended = unless_busy(|| Command::new("umount").arg(folder.path()).output());
    assert!(ended.status.success());
    for ((path, content), found) in files.iter().zip(found) {
        assert_eq!(found.as_deref(), Some(*content), "{path}");
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// One transaction makes every kind of change. The transaction itself, later readers and Linux see
/// all changes.
#[test]
fn a_transaction_changes_several_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("a.img");
    let fs = CreateOptions::new(SIZE).create(&image).expect("made");
    fs.write("/kept", "kept").expect("written");
    fs.write("/old", "old").expect("written");
    fs.set_xattr("/old", "user.colour", "blue").expect("set");
    fs.write("/gone", "gone").expect("written");
    fs.write("/from", "moved").expect("written");
    fs.hard_link("/old", "/second").expect("linked");
    let open = fs.open_file("/old").expect("open");
    let large = pattern(1, 3 << 20);
    let answer = fs.transaction(|tx| {
        tx.write("/old", "new")?;
        tx.create_dir("/dir")?;
        tx.create_dir("/dir/below")?;
        tx.write("/dir/below/large", &large)?;
        tx.rename("/from", "/dir/to")?;
        tx.remove_file("/gone")?;
        tx.write("/twice", "first")?;
        tx.write("/twice", "second")?;
        tx.write("/brief", "not for long")?;
        tx.rename("/brief", "/renamed")?;
        tx.remove_file("/renamed")?;
        tx.write("/gone", "again")?;
        assert_eq!(tx.read("/old")?, b"new");
        assert_eq!(tx.read("/dir/to")?, b"moved");
        assert_eq!(tx.read("/kept")?, b"kept");
        assert_eq!(tx.read("/from").expect_err("moved").kind(), ErrorKind::NotFound);
        assert_eq!(fs.read("/old")?, b"old");
        assert!(!fs.exists("/dir")?);
        Ok(7)
    });
    assert_eq!(answer.expect("committed"), 7);
    assert_eq!(fs.read("/old").expect("read"), b"new");
    assert_eq!(fs.xattr("/old", "user.colour").expect("read"), b"blue");
    assert_eq!(fs.read("/second").expect("read"), b"old");
    assert_eq!(fs.metadata("/second").expect("stat").nlink(), 1);
    let mut buf = [0; 3];
    open.read_exact_at(&mut buf, 0).expect("read");
    assert_eq!(&buf, b"old");
    assert!(!fs.exists("/renamed").expect("looked"));
    drop(open);
    fs.close().expect("closed");
    check_by_linux(
        &image,
        &[
            ("old", b"new"),
            ("dir/below/large", &large),
            ("dir/to", b"moved"),
            ("gone", b"again"),
            ("twice", b"second"),
            ("second", b"old"),
            ("kept", b"kept"),
        ],
    );
    let fs = Filesystem::open(&image).expect("opened");
    assert_eq!(fs.read("/dir/below/large").expect("read"), large);
    assert!(!fs.exists("/from").expect("looked"));
}

/// A transaction that fails, for any reason, leaves no change and takes no space.
#[test]
fn a_failed_transaction_changes_nothing() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
    let fs = CreateOptions::new(SIZE).create_on(Arc::clone(&device)).expect("made");
    fs.write("/a", "a").expect("written");
    fs.create_dir("/dir").expect("made");
    fs.create_subvolume("/sub").expect("made");
    let failed = fs.transaction(|tx| {
        tx.write("/a", "changed")?;
        tx.create_dir("/new")?;
        Err::<(), _>(buttress::Error::other("the program changed its mind"))
    });
    let failed = failed.expect_err("failed");
    assert_eq!(failed.to_string(), "transaction: the program changed its mind");
    type Work = fn(&mut buttress::Transaction<'_>) -> buttress::Result<()>;
    let cases: [(ErrorKind, Work); 8] = [
        (ErrorKind::NotFound, |tx| tx.write("/nowhere/b", "b")),
        (ErrorKind::IsADirectory, |tx| tx.write("/dir", "b")),
        (ErrorKind::IsADirectory, |tx| tx.remove_file("/dir")),
        (ErrorKind::IsADirectory, |tx| tx.rename("/dir", "/other")),
        (ErrorKind::AlreadyExists, |tx| tx.create_dir("/dir")),
        (ErrorKind::NotFound, |tx| tx.remove_file("/b")),
        (ErrorKind::CrossesSubvolumes, |tx| tx.rename("/a", "/sub/a")),
        (ErrorKind::CrossesSubvolumes, |tx| tx.write("/sub/b", "b")),
    ];
    for (number, (kind, work)) in cases.into_iter().enumerate() {
        let outcome = fs.transaction(|tx| {
            tx.write("/a", "changed")?;
            work(tx)
        });
        assert_eq!(outcome.expect_err("refused").kind(), kind, "case {number}");
    }
    // Another call takes the name after the transaction has chosen it and before the transaction
    // ends.
    let outcome = fs.transaction(|tx| {
        tx.create_dir("/taken")?;
        tx.write("/taken/b", "b")?;
        fs.create_dir("/taken")
    });
    assert_eq!(outcome.expect_err("taken").kind(), ErrorKind::AlreadyExists);
    let within = fs.transaction(|_| fs.transaction(|tx| tx.write("/b", "b")));
    assert_eq!(within.expect_err("within").kind(), ErrorKind::InvalidInput);
    assert_eq!(fs.read("/a").expect("read"), b"a");
    for path in ["/new", "/other", "/b", "/sub/a", "/sub/b", "/taken/b"] {
        assert!(!fs.exists(path).expect("looked"), "{path}");
    }
    fs.transaction(|_| Ok(())).expect("nothing to do");
    fs.close().expect("closed");
    check(&device, "after failures");
}

/// A crash at any request of a device leaves the whole transaction or nothing of it. This also
/// holds if a file of the transaction is synced before the commit.
#[test]
fn a_transaction_is_whole_after_a_crash() {
    for (seed, with_fsync) in [(1, false), (2, true)] {
        let base = MemoryDevice::new(SIZE);
        let device: Arc<dyn Device> = Arc::new(base.fork());
        let fs = CreateOptions::new(SIZE).create_on(Arc::clone(&device)).expect("made");
        let old: Vec<_> = (0..4).map(|file| pattern(file, 9000)).collect();
        let new: Vec<_> = (0..4).map(|file| pattern(10 + file, 20_000)).collect();
        let names = ["/a", "/b", "/c", "/d"];
        for (name, content) in names.iter().zip(&old) {
            fs.write(name, content).expect("written");
        }
        fs.close().expect("closed");
        let mut image = vec![0; SIZE as usize];
        device.read_at(0, &mut image).expect("read");
        base.write_at(0, &image).expect("written");

        let log = Log::new();
        let recorder = log.device(&base, 512);
        let device = Arc::clone(&recorder) as Arc<dyn Device>;
        let fs = OpenOptions::new().open_devices(vec![device]).expect("opened");
        log.start(&[&recorder]);
        if with_fsync {
            let root = fs.engine().root();
            let put = |(name, content): (&&str, &Vec<u8>)| {
                let inode = root.tmpfile(0o644, 0, 0).expect("made");
                inode.write_at(0, content).expect("written");
                inode.flush_data().expect("written back");
                let name = name.as_bytes()[1..].to_vec();
                NameChange::Put { dir: NameDir::There(root.clone()), name, inode }
            };
            let changes: Vec<_> = names.iter().zip(&new).map(put).collect();
            root.change_names(&changes).expect("changed");
            fs.open_file("/c").expect("open").sync_all().expect("synced");
        } else {
            let written = fs.transaction(|tx| {
                names.iter().zip(&new).try_for_each(|(name, content)| tx.write(name, content))
            });
            written.expect("committed");
        }
        log.mark(1);
        fs.close().expect("closed");
        let (mut before, mut after) = (0, 0);
        let states = log.intervals(&mut Rng::new(seed), 4, 3, |crash| {
            let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
            let fs = OpenOptions::new().open_devices(vec![Arc::clone(&device)]).expect("opened");
            let found: Vec<_> = names.iter().map(|name| fs.read(name).expect("read")).collect();
            assert!(found == old || found == new, "event {}: a part of it", crash.event);
            assert!(crash.mark.is_none() || found == new, "event {}: it was done", crash.event);
            if found == old {
                before += 1;
            } else {
                after += 1;
            }
            fs.close().expect("closed");
            check(&device, "after a crash");
        });
        assert!(before > 0 && after > 0, "{states} states, {before} before and {after} after");
    }
}

/// Several threads change one number in transactions, and no change is lost.
#[test]
fn transactions_run_one_at_a_time() {
    let fs = volume();
    fs.write("/number", "0").expect("written");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let added = fs.transaction(|tx| {
                        let text = String::from_utf8(tx.read("/number")?).expect("text");
                        let number: u32 = text.parse().expect("a number");
                        tx.write("/number", (number + 1).to_string())
                    });
                    added.expect("committed");
                }
            });
        }
    });
    assert_eq!(fs.read("/number").expect("read"), b"20");
}

/// A full volume refuses a transaction whole, and takes the next transaction after something is
/// removed.
#[test]
fn a_transaction_on_a_full_volume_changes_nothing() {
    let fs = volume();
    fs.write("/a", "old").expect("written");
    let mut number = 0;
    let full = loop {
        let file = format!("/fill{number}");
        match fs.write(&file, pattern(number, 4 << 20)) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    let refused = fs.transaction(|tx| {
        tx.write("/a", "new")?;
        tx.write("/b", pattern(1, 32 << 20))
    });
    assert_eq!(refused.expect_err("full").kind(), ErrorKind::StorageFull);
    assert_eq!(fs.read("/a").expect("read"), b"old");
    assert!(!fs.exists("/b").expect("looked"));
    for file in 0..3 {
        fs.remove_file(format!("/fill{file}")).expect("removed");
    }
    fs.sync().expect("synced");
    fs.transaction(|tx| tx.write("/a", "new")).expect("there is room");
    assert_eq!(fs.read("/a").expect("read"), b"new");
}

/// A snapshot keeps the content of one moment, whatever happens to the files, and leaves nothing
/// behind.
#[test]
fn a_snapshot_keeps_one_moment() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("a.img");
    let fs = CreateOptions::new(SIZE).create(&image).expect("made");
    fs.create_dir("/dir").expect("made");
    let large = pattern(3, 5 << 20);
    fs.write("/dir/a", &large).expect("written");
    fs.write("/b", "b").expect("written");
    fs.symlink("dir/a", "/link").expect("linked");
    let moment = fs.snapshot().expect("taken");
    let second = fs.snapshot().expect("taken");
    fs.write("/dir/a", "other").expect("written");
    fs.remove_file("/b").expect("removed");
    fs.write("/new", "new").expect("written");
    fs.sync().expect("synced");
    drop(second);
    fs.sync().expect("synced");
    for _ in 0..2 {
        assert!(moment.read("/link").expect("read") == large);
        assert_eq!(moment.read_to_string("/b").expect("read"), "b");
        assert_eq!(moment.read_link("/link").expect("read"), Path::new("dir/a"));
        assert!(!moment.exists("/new").expect("looked"));
        assert_eq!(moment.metadata("/dir/a").expect("stat").len(), large.len() as u64);
        let names = moment
            .read_dir("/")
            .expect("listed")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["b", "dir", "link"]);
    }
    let file = moment.open_file("/dir/a").expect("open");
    drop(moment);
    let mut front = [0; 64];
    file.read_exact_at(&mut front, 0).expect("an open file stays");
    assert_eq!(front, large[..64]);
    drop(file);
    fs.close().expect("closed");
    let fs = Filesystem::open(&image).expect("opened");
    assert_eq!(fs.admin().subvolumes().expect("listed").len(), 1, "the top level alone");
    fs.close().expect("closed");
    let fs = OpenOptions::new().read_only(true).open(&image).expect("opened");
    assert_eq!(fs.snapshot().expect("itself").read("/new").expect("read"), b"new");
    fs.close().expect("closed");
    check_by_linux(&image, &[("dir/a", b"other"), ("new", b"new")]);
}

/// After a crash while a snapshot is taken or held, the next opening removes the snapshot.
#[test]
fn a_snapshot_is_gone_after_a_crash() {
    let base = MemoryDevice::new(SIZE);
    let log = Log::new();
    let recorder = log.device(&base, 512);
    let device = Arc::clone(&recorder) as Arc<dyn Device>;
    let fs = CreateOptions::new(SIZE).create_on(device).expect("made");
    fs.write("/a", pattern(1, 100_000)).expect("written");
    fs.sync().expect("synced");
    log.start(&[&recorder]);
    let moment = fs.snapshot().expect("taken");
    fs.write("/a", "other").expect("written");
    fs.sync().expect("synced");
    drop(moment);
    fs.close().expect("closed");
    let (mut named, mut states) = (0, 0);
    log.intervals(&mut Rng::new(1), 3, 2, |crash| {
        let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
        let read_only = OpenOptions::new().read_only(true);
        let fs = read_only.open_devices(vec![Arc::clone(&device)]).expect("opened");
        named += u32::from(fs.exists("/.buttress-snapshot").expect("looked"));
        fs.close().expect("closed");
        let fs = OpenOptions::new().open_devices(vec![Arc::clone(&device)]).expect("opened");
        assert_eq!(fs.read_dir("/").expect("listed").count(), 1, "event {}", crash.event);
        fs.close().expect("closed");
        let fs = OpenOptions::new().open_devices(vec![Arc::clone(&device)]).expect("opened");
        assert_eq!(fs.admin().subvolumes().expect("listed").len(), 1);
        fs.close().expect("closed");
        check(&device, "after a crash");
        states += 1;
    });
    assert!(named > 0, "no state of {states} has the name");
}
