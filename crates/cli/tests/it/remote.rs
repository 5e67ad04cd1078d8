//! Volumes in object stores, used through the program: every verb accepts their places.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::bench;
use crate::live::{Mounted, has, run};
use crate::unmounting::can_mount;

/// The place of a volume in a folder of the test.
fn place(bench: &crate::Bench, name: &str) -> String {
    format!("file://{}", bench.path(name).display())
}

/// Checks a copy of the volume with `btrfs check`, if that program is installed.
fn check_copy(bench: &crate::Bench, volume: &str, image: &str) {
    bench.ok(&["cp", volume, image]);
    bench.ok(&["check", "--check-data-csum", image]);
    if has(&["btrfs"], None) {
        let image = bench.path(image);
        run("btrfs", &["check", "--check-data-csum", image.to_str().expect("plain")]);
    }
}

/// A volume is made, filled, listed, changed, checked, and copied out of the store and back,
/// without a server or a mount.
#[test]
fn verbs_work_on_a_volume_in_a_folder() {
    let bench = bench();
    let volume = place(&bench, "volume");
    bench.fails(&["ls", &volume], 1, &["no volume", "--size"]);
    bench.ok(&["mkfs", &volume, "--size", "1T", "--label", "far"]);
    bench.fails(&["mkfs", &volume, "--size", "1T"], 6, &["--force"]);
    bench.fails(&["mkfs", &volume, "--size", "2T", "--force"], 2, &["bytes long"]);
    std::fs::write(bench.path("note"), vec![b'x'; 3 << 20]).expect("a file");
    bench.ok(&["cp", "note", &format!("{volume}:/")]);
    bench.ok(&["subvolume", "snapshot", &format!("{volume}:/"), &format!("{volume}:/then")]);
    bench.ok(&["mkdir", &format!("{volume}:/dir")]);
    bench.ok(&["mv", &format!("{volume}:/note"), &format!("{volume}:/dir/note")]);
    assert_eq!(bench.ok(&["cat", &format!("{volume}:/dir/note")]).len(), 3 << 20);
    assert!(bench.ok(&["info", &volume]).contains("far"));
    bench.ok(&["check", "--check-data-csum", &volume]);
    check_copy(&bench, &volume, "copy.img");
    let again = place(&bench, "again");
    bench.ok(&["cp", "copy.img", &again]);
    assert_eq!(bench.ok(&["cat", &format!("{again}:/dir/note")]).len(), 3 << 20);
    bench.ok(&["check", "--check-data-csum", &again]);
    bench.fails(&["cp", "copy.img", &again], 6, &["holds"]);
}

/// One command grows a volume: `?size=` in the name grows its device, and `resize` the file system.
#[test]
fn a_volume_grows_by_its_name() {
    let bench = bench();
    let volume = place(&bench, "volume");
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    std::fs::write(bench.path("note"), vec![b'x'; 3 << 20]).expect("a file");
    bench.ok(&["cp", "note", &format!("{volume}:/")]);
    let said = bench.ok(&["filesystem", "resize", "max", &format!("{volume}?size=2G")]);
    assert!(said.contains("2.00GiB"), "{said}");
    let said = bench.ok(&["filesystem", "resize", "+1G", &volume]);
    assert!(said.contains("3.00GiB"), "{said}");
    bench.fails(&["filesystem", "resize", "-1G", &volume], 2, &["does not shrink"]);
    bench.fails(&["mkdir", &format!("{volume}?size=2G:/x")], 2, &["shrink"]);
    bench.ok(&["check", "--check-data-csum", &volume]);
    check_copy(&bench, &volume, "copy.img");
    assert_eq!(std::fs::metadata(bench.path("copy.img")).expect("a copy").len(), 3 << 30);
}

/// A volume grows while it is mounted, and while a program writes it. Then the test writes more
/// bytes than the old size. Linux mounts a copy, and finds the same content. A smaller size is
/// refused.
#[test]
fn a_mounted_volume_grows() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    let volume = place(&bench, "volume");
    bench.ok(&["mkfs", &volume, "--size", "256M"]);
    let mounted = Mounted::of(&bench, &volume, &[]);
    let mnt = bench.path("mnt");
    let mnt = mnt.to_str().expect("plain");
    // Each 16 KiB is another one. Tests of this package are not optimised, and a mebibyte from byte
    // to byte takes a tenth of a second.
    let content = |number: u32| -> Vec<u8> {
        let block = |at: u32| (at.wrapping_mul(number + 3) >> 7) as u8;
        let mut bytes = (0..16 << 10).map(block).collect::<Vec<u8>>().repeat(64);
        for (index, part) in bytes.chunks_mut(16 << 10).enumerate() {
            part[..8].copy_from_slice(&(u64::from(number) << 32 | index as u64).to_le_bytes());
        }
        bytes
    };
    std::fs::write(bench.path("mnt/before"), content(1)).expect("a file");
    let said = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 10..60 {
                std::fs::write(bench.path(&format!("mnt/{number}")), content(number))
                    .expect("room");
            }
        });
        let said = bench.ok(&["filesystem", "resize", "+256M", mnt]);
        writer.join().expect("written");
        said
    });
    assert!(said.contains("512.00MiB"), "{said}");
    let mut as_btrfs = bench.command(&["filesystem", "resize", "1:+512M", mnt]);
    let output = as_btrfs.arg0("btrfs").output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    bench.fails(&["filesystem", "resize", "-256M", mnt], 2, &["does not shrink"]);
    bench.fails(&["filesystem", "resize", "512M", mnt], 2, &["does not shrink"]);
    for number in 60..400 {
        std::fs::write(bench.path(&format!("mnt/{number}")), content(number)).expect("room");
    }
    mounted.end();
    check_copy(&bench, &volume, "copy.img");
    assert_eq!(std::fs::metadata(bench.path("copy.img")).expect("a copy").len(), 1 << 30);
    let compare = || {
        for number in (10..400).chain([1]) {
            let name = if number == 1 { "before".to_owned() } else { number.to_string() };
            let found = std::fs::read(bench.path("mnt").join(&name)).expect("kept");
            assert!(found == content(number), "{name}");
        }
    };
    if has(&["mount", "umount"], Some("/dev/loop-control")) {
        let image = bench.path("copy.img");
        let image = image.to_str().expect("plain");
        run("mount", &["-t", "btrfs", "-o", "loop", image, mnt]);
        compare();
        run("umount", &[mnt]);
    }
    let mounted = Mounted::of(&bench, &volume, &[]);
    compare();
    mounted.end();
}

/// For a wrong place, the message describes the mistake.
#[test]
fn wrong_places_are_named() {
    let bench = bench();
    bench.fails(&["check", "gs:///a"], 2, &["bucket"]);
    bench.fails(&["check", "az://container/a?colour=red"], 1, &["colour"]);
    bench.fails(&["check", "file://relative"], 2, &["slash"]);
    bench.fails(&["check", "file:///a?colour=red"], 2, &["colour"]);
    let volume = place(&bench, "volume");
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    bench.volume("other.img", "256M");
    bench.fails(&["mkfs", &volume, "other.img", "--force"], 4, &["common commit"]);
    bench.fails(&["device", "add", &volume, "other.img", "--force"], 4, &["common commit"]);
}

/// A volume is mounted, written, unmounted and mounted again. The content is equal, and Linux finds
/// no fault in a copy. While the volume is mounted, a second writer is refused, and readers are
/// not.
#[test]
fn a_mount_of_a_volume_in_a_folder_keeps_its_content() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    let volume = place(&bench, "volume");
    bench.ok(&["mkfs", &volume, "--size", "1T"]);
    let mounted = Mounted::of(&bench, &volume, &[]);
    let script = "cd mnt && mkdir -p a/b && for i in $(seq 200); do head -c $((i * 97)) \
                  /dev/urandom > a/b/$i; done && sync -f . && (cd a && find . -type f -print0 | \
                  sort -z | xargs -0 sha256sum) > ../sums";
    let sh = |script: &str| {
        let ended = Command::new("sh").args(["-c", script]).current_dir(bench.folder()).status();
        assert!(ended.expect("a shell").success(), "{script}");
    };
    sh(script);
    bench.fails(&["mkdir", &format!("{volume}:/x")], 1, &["--takeover"]);
    bench.ok(&["check", &volume]);
    mounted.end();
    let mounted = Mounted::of(&bench, &volume, &[]);
    sh("cd mnt/a && sha256sum --quiet -c ../../sums");
    mounted.end();
    check_copy(&bench, &volume, "copy.img");
}

/// A killed server leaves the last commit, and the next mount needs no option to open the volume.
#[test]
fn a_killed_server_leaves_what_was_synced() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    let volume = place(&bench, "volume");
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    let mounted = Mounted::of(&bench, &volume, &[]);
    let file = bench.path("mnt/kept");
    std::fs::write(&file, b"kept").expect("a file");
    std::fs::File::open(&file).and_then(|file| file.sync_all()).expect("durable");
    run("kill", &["-9", &mounted.pid().to_string()]);
    drop(mounted);
    let mounted = Mounted::of(&bench, &volume, &[]);
    assert_eq!(std::fs::read(&file).expect("it was synced"), b"kept");
    mounted.end();
    check_copy(&bench, &volume, "copy.img");
}

/// Writes a file below the mount and waits for its fsync.
fn write_synced(bench: &crate::Bench, name: &str) {
    let path = bench.path("mnt").join(name);
    std::fs::write(&path, name).expect("a file");
    std::fs::File::open(&path).and_then(|file| file.sync_all()).expect("durable");
}

/// A server with a local log is killed. The store has a whole volume without the writes that only
/// the log has. The next mount with the log has all acknowledged writes, and uploads them.
#[test]
fn a_killed_server_leaves_its_local_log() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    let volume = place(&bench, "volume");
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    let options = format!("cache-dir={},max-lag=600", bench.path("cache").display());
    let mounted = Mounted::of(&bench, &volume, &["-o", &options]);
    write_synced(&bench, "far");
    run("sync", &[bench.path("mnt").to_str().expect("plain")]);
    write_synced(&bench, "near");
    let stats = bench.ok(&["--json", "stats", bench.path("mnt").to_str().expect("plain")]);
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
    let store = &stats["sections"]["store"];
    assert!(
        store["lag_bytes"].as_u64() > Some(0) && store["log_bytes"].as_u64() > Some(0),
        "{store}"
    );
    run("kill", &["-9", &mounted.pid().to_string()]);
    drop(mounted);
    check_copy(&bench, &volume, "alone.img");
    assert_eq!(bench.ok(&["cat", "alone.img:/far"]), "far");
    bench.fails(&["cat", "alone.img:/near"], 1, &["near"]);
    bench.fails(&["mkdir", &format!("{volume}:/x")], 1, &["cache-dir", "--discard-local"]);
    let mounted = Mounted::of(&bench, &volume, &["-o", &options]);
    assert_eq!(std::fs::read(bench.path("mnt/near")).expect("it was acknowledged"), b"near");
    mounted.end();
    check_copy(&bench, &volume, "copy.img");
    assert_eq!(bench.ok(&["cat", "copy.img:/near"]), "near");
    bench.ok(&["mkdir", &format!("{volume}:/x")]);
}

/// `remote push` reports success only when the store has everything, also the writes that only a
/// local log has after a crash. A path that is not in an object store is refused.
#[test]
fn a_push_uploads_what_a_local_log_has() {
    let bench = bench();
    bench.volume("local.img", "256M");
    bench.fails(&["remote", "push", "local.img"], 2, &["in no store"]);
    bench.fails(&["remote", "push", "."], 2, &["in no store"]);
    if !can_mount() {
        return;
    }
    let volume = place(&bench, "volume");
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    let options = format!("cache-dir={},max-lag=600", bench.path("cache").display());
    let mounted = Mounted::of(&bench, &volume, &["-o", &options]);
    write_synced(&bench, "near");
    run("kill", &["-9", &mounted.pid().to_string()]);
    drop(mounted);
    bench.fails(&["remote", "push", &volume], 1, &["cache-dir"]);
    let cached = format!("{volume}?cache-dir={}", bench.path("cache").display());
    bench.ok(&["remote", "push", &cached]);
    check_copy(&bench, &volume, "pushed.img");
    // A writer replays the log that fsync wrote since the last commit of the file system.
    bench.ok(&["mkdir", "pushed.img:/x"]);
    assert_eq!(bench.ok(&["cat", "pushed.img:/near"]), "near");
    let mounted = Mounted::of(&bench, &volume, &["-o", &options]);
    write_synced(&bench, "later");
    bench.ok(&["remote", "push", bench.path("mnt").to_str().expect("plain")]);
    run("kill", &["-9", &mounted.pid().to_string()]);
    drop(mounted);
    check_copy(&bench, &volume, "later.img");
    bench.ok(&["mkdir", "later.img:/x"]);
    assert_eq!(bench.ok(&["cat", "later.img:/later"]), "later");
}

/// Another machine takes the volume of a server with a local log. The log is refused from then on,
/// and its content is salvaged into an image.
#[test]
fn a_log_behind_another_writer_is_salvaged() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    let volume = place(&bench, "volume");
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    let options = format!("cache-dir={},max-lag=600", bench.path("cache").display());
    let mounted = Mounted::of(&bench, &volume, &["-o", &options]);
    write_synced(&bench, "near");
    run("kill", &["-9", &mounted.pid().to_string()]);
    drop(mounted);
    bench.ok(&["mkdir", "--takeover", &format!("{volume}:/other")]);
    let cached = format!("{volume}?cache-dir={}", bench.path("cache").display());
    bench.fails(&["mkdir", &format!("{cached}:/x")], 1, &["salvage", "--discard-local"]);
    for content in [&b"letter"[..], &[0; 5000]] {
        std::fs::write(bench.path("letter.img"), content).expect("a file");
        bench.fails(&["remote", "salvage", &volume, "cache", "letter.img"], 6, &["overwrites"]);
        assert_eq!(std::fs::read(bench.path("letter.img")).expect("it is kept"), content);
    }
    bench.ok(&["remote", "salvage", &volume, "cache", "saved.img"]);
    bench.ok(&["check", "--check-data-csum", "saved.img"]);
    bench.ok(&["check", "--check-data-csum", &volume]);
    bench.ok(&["mkdir", "saved.img:/y"]);
    assert_eq!(bench.ok(&["cat", "saved.img:/near"]), "near");
    bench.fails(&["cat", &format!("{volume}:/near")], 1, &["near"]);
    bench.ok(&["mkdir", "--discard-local", &format!("{cached}:/x")]);
    assert!(bench.ok(&["ls", &format!("{volume}:/")]).contains("other"));
    bench.ok(&["remote", "delete", &volume]);
    bench.fails(&["ls", &volume], 1, &["no volume"]);
}

/// A server that speaks S3, on a folder of the test.
struct Server {
    child: std::process::Child,
    address: String,
}

impl Server {
    /// Starts versitygw, if `BUTTRESS_VERSITYGW` has the path of that program.
    fn start(bench: &crate::Bench) -> Option<Self> {
        let Some(program) = std::env::var_os("BUTTRESS_VERSITYGW") else {
            eprintln!("SKIPPED: BUTTRESS_VERSITYGW does not name versitygw");
            return None;
        };
        for folder in ["s3/data/bucket", "s3/side"] {
            std::fs::create_dir_all(bench.path(folder)).expect("a folder");
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let address = free.expect("a free port").to_string();
        let mut command = Command::new(program);
        command.args(["--access", "test", "--secret", "testsecret", "--port", &address, "posix"]);
        command.arg("--sidecar").arg(bench.path("s3/side")).arg(bench.path("s3/data"));
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let child = command.spawn().expect("versitygw starts");
        let server = Self { child, address };
        for _ in 0..600 {
            if std::net::TcpStream::connect(&server.address).is_ok() {
                return Some(server);
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("versitygw does not listen at {}", server.address);
    }

    /// The place of a volume.
    fn place(&self, name: &str) -> String {
        let words = "access_key_id=test&secret_access_key=testsecret&region=us-east-1";
        format!("s3://bucket/{name}?endpoint=http://{}&{words}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// On an S3 server, a volume is made, filled, mounted, pinned, cloned, collected, and copied out of
/// the store and back.
#[test]
fn a_volume_on_a_server_is_one_as_others_are() {
    let bench = bench();
    let Some(server) = Server::start(&bench) else { return };
    let volume = server.place("home");
    bench.fails(&["ls", &volume], 1, &["no volume"]);
    bench.ok(&["mkfs", &volume, "--size", "1T"]);
    std::fs::write(bench.path("note"), vec![b'y'; 20 << 20]).expect("a file");
    bench.ok(&["cp", "note", &format!("{volume}:/")]);
    bench.ok(&["remote", "pin", &volume, "first"]);
    if can_mount() {
        let mounted = Mounted::of(&bench, &volume, &[]);
        std::fs::write(bench.path("mnt/more"), vec![b'z'; 3 << 20]).expect("a file");
        mounted.end();
    }
    bench.ok(&["rm", &format!("{volume}:/note")]);
    bench.ok(&["remote", "gc", &format!("{volume}&min-keep=0")]);
    let pinned = format!("{volume}&pin=first");
    assert_eq!(bench.ok(&["cat", &format!("{pinned}:/note")]).len(), 20 << 20);
    let other = server.place("other");
    bench.ok(&["remote", "clone", &pinned, &other]);
    assert_eq!(bench.ok(&["cat", &format!("{other}:/note")]).len(), 20 << 20);
    bench.ok(&["check", "--check-data-csum", &volume]);
    check_copy(&bench, &volume, "copy.img");
    check_copy(&bench, &other, "other.img");
    let wrong = volume.replace("testsecret", "wrong");
    bench.fails(&["ls", &wrong], 1, &["refuses"]);
    let wrong = volume.replace("bucket", "nothing");
    bench.fails(&["mkfs", &wrong, "--size", "1G"], 1, &["no such bucket"]);
}

/// Commits are listed, pinned and released. A clone has its own identifier, is a complete volume,
/// and survives changes of its base.
#[test]
fn pins_and_clones_keep_what_they_name() {
    let bench = bench();
    let volume = place(&bench, "volume");
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    std::fs::write(bench.path("note"), vec![b'y'; 2 << 20]).expect("a file");
    bench.ok(&["cp", "note", &format!("{volume}:/")]);
    bench.ok(&["remote", "pin", &volume, "first"]);
    bench.fails(&["remote", "pin", &volume, "a/b"], 1, &["letters"]);
    assert!(bench.ok(&["remote", "log", &volume]).contains("kept as first"));
    let other = place(&bench, "other");
    bench.ok(&["remote", "clone", &volume, &other]);
    bench.ok(&["rm", &format!("{volume}:/note")]);
    bench.ok(&["remote", "gc", &format!("{volume}?min-keep=0")]);
    assert_eq!(bench.ok(&["cat", &format!("{other}:/note")]).len(), 2 << 20);
    assert_eq!(bench.ok(&["cat", &format!("{volume}?pin=first:/note")]).len(), 2 << 20);
    bench.fails(&["cat", &format!("{volume}:/note")], 1, &["note"]);
    bench.fails(&["mkdir", &format!("{volume}?pin=first:/x")], 1, &["only be read"]);
    let uuid = |place: &str| {
        let text = bench.ok(&["--json", "info", place]);
        let info: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        info["uuid"].as_str().or(info["superblock"]["fsid"].as_str()).map(str::to_owned)
    };
    assert_ne!(uuid(&volume), uuid(&other), "a file system of its own");
    bench.ok(&["cp", "note", &format!("{other}:/second")]);
    bench.ok(&["check", "--check-data-csum", &other]);
    check_copy(&bench, &other, "other.img");
    bench.ok(&["remote", "unpin", &volume, "first"]);
    let usage = bench.ok(&["--json", "remote", "usage", &other]);
    let usage: serde_json::Value = serde_json::from_str(&usage).expect("JSON");
    assert!(usage["shared_bytes"].as_u64() > Some(2 << 20), "{usage}");
}
