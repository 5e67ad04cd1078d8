//! A store of objects that is away for a while: programs that wait for it, and how they give up.
//!
//! The store is a folder. A pipe in the place of an object is a server that does not answer. A file
//! in the place of a folder is a server that fails.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench;
use crate::checker::check;
use crate::live::{Mounted, run};
use crate::unmounting::can_mount;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition holds, and fails with `what` if that takes too long.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The data objects of a volume.
fn objects(volume: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(volume.join("data")).expect("a volume");
    let folders = folders.map(|entry| entry.expect("a folder").path()).filter(|path| path.is_dir());
    let inside = |folder: PathBuf| fs::read_dir(folder).expect("a folder");
    folders.flat_map(inside).map(|entry| entry.expect("an object").path()).collect()
}

/// Reads of data get no answer from now on.
pub(crate) fn hide(volume: &Path) -> Vec<PathBuf> {
    let objects = objects(volume);
    for object in &objects {
        fs::rename(object, object.with_extension("hidden")).expect("renamed");
        run("mkfifo", &[object.to_str().expect("plain")]);
    }
    objects
}

pub(crate) fn show(objects: &[PathBuf]) {
    for object in objects {
        let kind = fs::symlink_metadata(object).expect("it is there").file_type();
        assert!(kind.is_fifo(), "the store was away all the time");
        fs::rename(object.with_extension("hidden"), object).expect("renamed");
    }
}

/// New data objects fail from now on. The returned files are in their way.
fn refuse_new(volume: &Path) -> Vec<PathBuf> {
    let all = (0..=255).map(|low| volume.join(format!("data/{low:02x}")));
    let new: Vec<_> = all.filter(|folder| !folder.exists()).collect();
    new.iter().for_each(|folder| fs::write(folder, b"").expect("a file"));
    new
}

fn allow_new(in_the_way: &[PathBuf]) {
    in_the_way.iter().for_each(|file| fs::remove_file(file).expect("it is in the way"));
}

/// Whether a program waits in the kernel for the answer to a request.
fn waits_for_answer(child: &Child) -> bool {
    let place = fs::read_to_string(format!("/proc/{}/wchan", child.id())).unwrap_or_default();
    place.contains("request_wait_answer") || place.contains("fuse")
}

/// Programs read a file and the store does not answer. They end when they are killed, while the
/// store is still away. Afterwards another program reads the file, and no error was counted.
#[test]
fn a_program_that_waits_for_a_store_can_be_killed() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    let folder = bench.path("volume");
    let volume = format!("file://{}", folder.display());
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
    fs::write(bench.path("note"), &content).expect("a file");
    bench.ok(&["cp", "note", &format!("{volume}:/")]);
    for options in ["rw", "ro"] {
        let mounted = Mounted::of(&bench, &volume, &["-o", options]);
        let note = bench.path("mnt/note");
        assert_eq!(fs::metadata(&note).expect("it is there").len(), content.len() as u64);
        let hidden = hide(&folder);
        let read = |more: &str| {
            let from = format!("if={}", note.display());
            let mut dd = Command::new("dd");
            dd.args([&from, "of=/dev/null", "bs=1M", "count=1", more]);
            dd.stderr(Stdio::null()).spawn().expect("it starts")
        };
        for (how, signal) in [("iflag=direct", "-KILL"), ("iflag=direct", "-TERM")] {
            let mut child = read(how);
            wait_until("it never waits", || waits_for_answer(&child));
            run("kill", &[signal, &child.id().to_string()]);
            wait_until("it does not die", || child.try_wait().expect("it is ours").is_some());
            assert!(child.wait().expect("it is ours").signal().is_some());
        }
        show(&hidden);
        assert!(fs::read(&note).expect("the store is back") == content);
        let stats = bench.ok(&["device", "stats", "mnt"]);
        let failed = stats.lines().find(|line| line.contains("errs") && !line.ends_with(" 0"));
        assert_eq!(failed, None, "{stats}");
        mounted.end();
    }
    bench.ok(&["check", "--check-data-csum", &volume]);
}

/// Waits until a program has waited for one answer for more than a second. Its place in its output
/// shows whether it goes on.
fn wait_until_stuck(what: &str, child: &Child) {
    let at = || fs::read_to_string(format!("/proc/{}/fdinfo/1", child.id())).unwrap_or_default();
    let (mut seen, mut since) = (at(), Instant::now());
    wait_until(what, || {
        let now = at();
        if now != seen || !waits_for_answer(child) {
            (seen, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_millis(1500)
    });
}

/// Programs that change something wait for a store that is away: for a node that a new name needs,
/// for a sync, and for the limit of dirty data. They end when they are killed, while the store is
/// still away. Afterwards the mount can be written, and its volume is whole.
#[test]
fn a_program_that_changes_something_can_be_killed() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    let folder = bench.path("volume");
    let volume = format!("file://{}", folder.display());
    bench.ok(&["mkfs", &volume, "--size", "2G", "--nodesize", "4K"]);
    let name = |number: u32| format!("mnt/dir/{number:04}-{}", "n".repeat(200));
    let mounted = Mounted::of(&bench, &volume, &[]);
    fs::create_dir(bench.path("mnt/dir")).expect("a folder");
    for number in 0..4000 {
        fs::write(bench.path(&name(number)), b"").expect("a file");
    }
    mounted.end();
    let options = "nowriteback_cache,dirty=16777216,memory=134217728";
    let mounted = Mounted::of(&bench, &volume, &["-o", options]);
    fs::write(bench.path("mnt/first"), b"first").expect("a file");
    // The kernel knows that the name is free, so `touch` begins with the creation.
    let new = bench.path("mnt/dir/2000-new");
    assert!(!new.exists());
    let (hidden, in_the_way) = (hide(&folder), refuse_new(&folder));
    let to = |name: &str| format!("of={}", bench.path("mnt").join(name).display());
    let programs: [(&str, Vec<String>); 3] = [
        ("touch", vec![new.display().to_string()]),
        (
            "dd",
            ["if=/dev/zero", &to("synced"), "bs=4k", "count=1", "conv=fsync"]
                .map(String::from)
                .into(),
        ),
        ("dd", ["if=/dev/zero", &to("large"), "bs=1M", "count=1500"].map(String::from).into()),
    ];
    for (program, words) in programs {
        let mut command = Command::new(program);
        let mut child = command.args(&words).stderr(Stdio::null()).spawn().expect("it starts");
        wait_until_stuck("it never waits", &child);
        let killed = Instant::now();
        run("kill", &["-KILL", &child.id().to_string()]);
        wait_until("it does not die", || child.try_wait().expect("it is ours").is_some());
        let took = killed.elapsed();
        assert!(took < Duration::from_secs(10), "{program} {words:?}: {took:?}");
        assert!(child.wait().expect("it is ours").signal().is_some(), "{program} {words:?}");
    }
    allow_new(&in_the_way);
    show(&hidden);
    run("sync", &["--file-system", bench.path("mnt").to_str().expect("plain")]);
    fs::write(&new, b"new").expect("it is writable");
    mounted.end();
    bench.ok(&["check", "--check-data-csum", &volume]);
    assert_eq!(bench.ok(&["cat", &format!("{volume}:/dir/2000-new")]), "new");
    assert_eq!(bench.ok(&["cat", &format!("{volume}:/synced")]).len(), 4096);
    let copy = bench.path("copy.img");
    bench.ok(&["cp", &volume, copy.to_str().expect("plain")]);
    check(&copy);
}

/// The last commit of a mount waits for the store. The server and `umount` say so, and name the
/// command that gives up. After that command, the local log has everything, and the next mount
/// uploads it. Without a log, the message says that the writes are lost.
#[test]
fn the_wait_at_unmount_is_named_and_can_be_given_up() {
    if !can_mount() {
        return;
    }
    for has_log in [true, false] {
        let bench = bench();
        let folder = bench.path("volume");
        let volume = format!("file://{}", folder.display());
        bench.ok(&["mkfs", &volume, "--size", "1G"]);
        bench.fails(&["umount", "--force", &volume], 1, &["is not mounted"]);
        let log = format!("cache-dir={},max-lag=600", bench.path("cache").display());
        let options = if has_log { log.as_str() } else { "rw" };
        let mut command = bench.command(&["mount", &volume, "mnt", "-o", options, "--foreground"]);
        fs::create_dir(bench.path("mnt")).expect("a folder");
        let mut server = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let is_mounted = || fs::metadata(bench.path("mnt")).is_ok_and(|top| top.ino() == 256);
        wait_until("no mount", is_mounted);
        fs::write(bench.path("mnt/near"), "near").expect("a file");
        if has_log {
            fs::File::open(bench.path("mnt/near"))
                .and_then(|file| file.sync_all())
                .expect("logged");
        }
        let in_the_way = refuse_new(&folder);
        let mut umount = bench.command(&["umount", "mnt"]);
        let mut umount = umount.stderr(Stdio::piped()).spawn().expect("it starts");
        let force = format!("umount --force {volume}");
        let kept = if has_log { "uploads it" } else { "are lost" };
        for program in [&mut server, &mut umount] {
            let said = BufReader::new(program.stderr.take().expect("piped"));
            let is_it = |line: &String| line.contains(&force);
            let line = said.lines().map(|line| line.expect("text")).find(is_it);
            let line = line.expect("it says how to give up");
            for word in [" bytes of the last ", "the store failed", kept] {
                assert!(line.contains(word), "{word}: {line}");
            }
        }
        let mut force = bench.command(&["umount", "--force", &volume]);
        let force = force.output().expect("it runs");
        let said = String::from_utf8_lossy(&force.stderr).into_owned();
        assert!(force.status.success() && said.contains(kept), "{said}");
        assert!(!umount.wait().expect("it is ours").success(), "not everything is in the store");
        assert!(!server.wait().expect("it is ours").success());
        allow_new(&in_the_way);
        let copy = bench.path("copy.img");
        if has_log {
            let mounted = Mounted::of(&bench, &volume, &["-o", options]);
            assert_eq!(fs::read(bench.path("mnt/near")).expect("it was acknowledged"), b"near");
            mounted.end();
            assert_eq!(bench.ok(&["cat", &format!("{volume}:/near")]), "near");
        }
        bench.ok(&["check", "--check-data-csum", &volume]);
        bench.ok(&["cp", &volume, copy.to_str().expect("plain")]);
        check(&copy);
    }
}

/// Whether a program handles Ctrl-C itself.
fn handles_interrupts(child: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
    u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set & 2 != 0)
}

/// Ctrl-C in verbs that write a volume in a store: each says what is left behind and what to do,
/// with the exit code of shells. The volume is whole, and the same command succeeds afterwards.
#[test]
fn an_interrupted_verb_says_what_is_left() {
    let bench = bench();
    let folder = bench.path("volume");
    let volume = format!("file://{}", folder.display());
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    fs::write(bench.path("note"), vec![b'x'; 30 << 20]).expect("a file");
    bench.volume("local.img", "256M");
    fs::create_dir(bench.path("other")).expect("a folder");
    fs::create_dir(bench.path("other/data")).expect("a folder");
    let into = format!("{volume}:/");
    let other = format!("file://{}", bench.path("other").display());
    let verbs: [(&Path, &[&str]); 3] = [
        (&folder, &["cp", "note", &into]),
        (&folder, &["mkdir", &format!("{volume}:/dir")]),
        (&bench.path("other"), &["cp", "local.img", &other]),
    ];
    for (folder, verb) in verbs {
        let in_the_way = refuse_new(folder);
        let child = bench.command(verb).stderr(Stdio::piped()).spawn().expect("it starts");
        wait_until("it opens no volume", || handles_interrupts(&child));
        run("kill", &["-INT", &child.id().to_string()]);
        let ended = child.wait_with_output().expect("it is ours");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        allow_new(&in_the_way);
        assert_eq!(ended.status.code(), Some(130), "{verb:?}: {said}");
        assert!(said.contains("interrupted: ") && said.contains("remote gc"), "{said}");
        bench.ok(verb);
    }
    assert_eq!(bench.ok(&["cat", &format!("{volume}:/note")]).len(), 30 << 20);
    for (number, place) in [volume, other].into_iter().enumerate() {
        bench.ok(&["remote", "gc", &place]);
        bench.ok(&["check", "--check-data-csum", &place]);
        let copy = format!("copy{number}.img");
        bench.ok(&["cp", &place, &copy]);
        check(&bench.path(&copy));
    }
}

/// Ctrl-C before a verb has opened its volume, which needs a key that the store does not give.
#[test]
fn a_verb_that_opens_nothing_yet_says_what_is_left() {
    let bench = bench();
    let volume = format!("file://{}", bench.path("volume").display());
    let command = |words: &[&str]| {
        let mut command = bench.command(words);
        command.env("BUTTRESS_PASSPHRASE", "one");
        command
    };
    fs::write(bench.path("note"), "a note").expect("a file");
    let made = command(&["mkfs", &volume, "--size", "1G"]).status().expect("it starts");
    assert!(made.success());
    let key = bench.path("volume/key/00000001");
    fs::rename(&key, key.with_extension("hidden")).expect("renamed");
    run("mkfifo", &[key.to_str().expect("plain")]);
    let into = format!("{volume}:/");
    let verbs: [&[&str]; 3] = [
        &["cp", "note", &into],
        &["mkfs", "--force", &volume, "--size", "1G"],
        &["remote", "gc", &volume],
    ];
    for verb in verbs {
        let child = command(verb).stderr(Stdio::piped()).spawn().expect("it starts");
        wait_until("it handles no signal", || handles_interrupts(&child));
        run("kill", &["-INT", &child.id().to_string()]);
        let ended = child.wait_with_output().expect("it is ours");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(130), "{verb:?}: {said}");
        assert!(said.contains("not open yet") && said.contains("remote gc"), "{said}");
    }
    show(&[key]);
    assert!(command(verbs[0]).status().expect("it starts").success());
    let copied = command(&["cat", &format!("{volume}:/note")]).output().expect("it starts");
    assert_eq!(copied.stdout, b"a note");
}

/// Ctrl-C in verbs that work on a place as a whole, while the store does not answer: each says what
/// is left, and the same command succeeds afterwards.
#[test]
fn interrupted_work_on_a_place_says_what_is_left() {
    let bench = bench();
    let volume = format!("file://{}", bench.path("volume").display());
    let clone = format!("file://{}", bench.path("clone").display());
    let command = |words: &[&str]| {
        let mut command = bench.command(words);
        command.env("BUTTRESS_PASSPHRASE", "one").env("BUTTRESS_NEW_PASSPHRASE", "one");
        command
    };
    let ended = command(&["mkfs", &volume, "--size", "1G"]).status().expect("it starts");
    assert!(ended.success());
    let verbs: [(&[&str], &str, &str); 3] = [
        (&["remote", "rekey", &volume], "volume/key/00000001", "former key"),
        (&["remote", "clone", &volume, &clone], "volume/pin", "remote log"),
        (&["remote", "delete", &clone], "clone/gone", "delete what is left"),
    ];
    for (verb, object, words) in verbs {
        // A key gets no answer. An object in a folder that is a file is refused, and tried again.
        let object = bench.path(object);
        let is_key = object.is_file();
        if is_key {
            fs::rename(&object, object.with_extension("hidden")).expect("renamed");
            run("mkfifo", &[object.to_str().expect("plain")]);
        } else {
            fs::write(&object, b"").expect("there was none");
        }
        let child = command(verb).stderr(Stdio::piped()).spawn().expect("it starts");
        wait_until("it does not begin", || handles_interrupts(&child));
        run("kill", &["-INT", &child.id().to_string()]);
        let ended = child.wait_with_output().expect("it is ours");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(130), "{verb:?}: {said}");
        assert!(said.contains("interrupted: ") && said.contains(words), "{said}");
        if is_key {
            show(&[object]);
        } else {
            fs::remove_file(&object).expect("it is in the way");
        }
        let again = command(verb).output().expect("it starts");
        assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    }
    let ended = command(&["check", &volume]).status().expect("it starts");
    assert!(ended.success());
}
