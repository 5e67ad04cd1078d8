//! Several mounts of one volume, as an fstab has them: one server, one superblock of the kernel.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use buttress_test_program::mounts::in_own_namespace;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::checker::check;
use crate::live::run;
use crate::unmounting::{can_mount, helper, script, succeeded};
use crate::{Bench, bench, text};

const PAGE: usize = 4096;

/// A volume with two subvolumes, and places for mounts.
fn volume() -> Bench {
    let bench = bench();
    bench.volume("image", "256M");
    bench.ok(&["subvolume", "create", "image:/@", "image:/@home"]);
    for place in ["a", "b", "c", "d"] {
        fs::create_dir(bench.path(place)).expect("a folder");
    }
    bench
}

fn mount(bench: &Bench, place: &str, options: &str) {
    bench.ok(&["mount", "image", place, "-o", options]);
}

/// The kernel's entry of the mount at a place: the shown folder, and the mount's own options.
fn listed(bench: &Bench, place: &str) -> Option<(String, String)> {
    let list = fs::read_to_string("/proc/self/mountinfo").expect("the list");
    let point = bench.path(place);
    let line = list.lines().rfind(|line| line.split(' ').nth(4) == Some(text(&point)))?;
    let field = |at| line.split(' ').nth(at).expect("a field").to_owned();
    Some((field(3), field(5)))
}

/// The server's process, while there is one.
fn server(bench: &Bench) -> Option<u32> {
    buttress_block::locked_by(&bench.path("image"))
}

/// Waits until the volume is closed, and has it checked.
#[track_caller]
fn ends(bench: &Bench) {
    // Other tests have namespaces with copies of all mounts, which are served until those end.
    let began = std::time::Instant::now();
    while buttress_block::locked_by(&bench.path("image")).is_some() {
        assert!(began.elapsed().as_secs() < 60, "the server does not end");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    bench.ok(&["ls", "image:/"]);
    assert_eq!(server(bench), None);
    check(&bench.path("image"));
}

/// A shared map of a file's first pages.
struct Map(*mut u8, usize);

impl Map {
    #[expect(unsafe_code, reason = "maps are unsafe")]
    fn of(file: &File, pages: usize) -> Self {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let len = pages * PAGE;
        let any = std::ptr::null_mut();
        // SAFETY: a new map at an address that the kernel chooses. Dropping the `Map` unmaps it.
        let start = unsafe { mmap(any, len, both, MapFlags::SHARED, file.as_fd(), 0) };
        Self(start.expect("a map").cast(), len)
    }

    #[expect(unsafe_code, reason = "maps are unsafe")]
    fn get(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: the byte is within the map, which lives as long as this value.
        unsafe { self.0.add(at).read_volatile() }
    }

    #[expect(unsafe_code, reason = "maps are unsafe")]
    fn set(&self, at: usize, byte: u8) {
        assert!(at < self.1);
        // SAFETY: the byte is within the map, which lives as long as this value.
        unsafe { self.0.add(at).write_volatile(byte) };
    }
}

impl Drop for Map {
    #[expect(unsafe_code, reason = "maps are unsafe")]
    fn drop(&mut self) {
        // SAFETY: nothing else points into the map.
        let _ = unsafe { munmap(self.0.cast(), self.1) };
    }
}

/// A write by one mount is visible in the others, by calls and by mappings, without a sync.
#[test]
fn mounts_show_writes_of_each_other() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    mount(&bench, "a", "subvol=@home");
    mount(&bench, "b", "subvol=@home");
    mount(&bench, "c", "subvolid=5");
    let names = ["a/file", "b/file", "c/@home/file"];
    let open = |name: &&str| {
        File::options().read(true).write(true).create(true).truncate(false).open(bench.path(name))
    };
    let files = names.map(|name| open(&name).expect("it is opened"));
    files[0].set_len(4 * PAGE as u64).expect("it is longer");
    let maps = [0, 1, 2].map(|number| Map::of(&files[number], 4));
    let mut byte = 1;
    for writer in 0..3 {
        for at in [0, PAGE - 1, PAGE, 3 * PAGE + 7] {
            for by_map in [false, true] {
                byte += 1;
                match by_map {
                    true => maps[writer].set(at, byte),
                    false => files[writer].write_all_at(&[byte], at as u64).expect("written"),
                }
                for reader in 0..3 {
                    let mut read = [0];
                    files[reader].read_exact_at(&mut read, at as u64).expect("it is read");
                    assert_eq!((read[0], maps[reader].get(at)), (byte, byte), "{writer}, {reader}");
                }
            }
        }
        files[writer].set_len((5 + writer as u64) * PAGE as u64).expect("it is longer");
        let lengths = names.map(|name| bench.path(name).metadata().expect("it is there").len());
        assert_eq!(lengths, [(5 + writer as u64) * PAGE as u64; 3]);
    }
    let numbers: BTreeSet<_> =
        names.map(|name| bench.path(name).metadata().expect("it").ino()).into();
    assert_eq!(numbers.len(), 1, "one file");
    // The second and third mount look for a name before the first one makes it.
    let late = ["a/late", "b/late", "c/@home/late"].map(|name| bench.path(name));
    assert!(!late.iter().any(|path| path.exists()));
    fs::write(&late[0], "x").expect("it is written");
    assert!(late.iter().all(|path| path.exists()));
    fs::remove_file(&late[2]).expect("it is removed");
    assert!(!late.iter().any(|path| path.exists()));
    fs::rename(bench.path("b/file"), bench.path("b/other")).expect("it is renamed");
    assert!(bench.path("a/other").exists() && !bench.path("c/@home/file").exists());
    bench.ok(&["subvolume", "create", text(&bench.path("a/inner"))]);
    bench.ok(&["subvolume", "snapshot", text(&bench.path("b")), text(&bench.path("c/copy"))]);
    assert!(bench.path("b/inner").is_dir());
    assert_eq!(fs::read(bench.path("c/copy/other")).expect("it is read")[PAGE], byte - 2);
    drop((maps, files));
    bench.ok(&["umount", "a", "c", "b"]);
    ends(&bench);
}

/// Each mount has its own flags from the beginning, and keeps them when another mount is changed.
#[test]
fn each_mount_has_its_own_flags() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    mount(&bench, "a", "subvol=@");
    mount(&bench, "b", "subvol=/@home,ro,nosuid,nodev,noexec");
    mount(&bench, "c", "subvol=@home");
    assert_eq!(listed(&bench, "a"), Some(("/@".into(), "rw,relatime".into())));
    let flags = "ro,nosuid,nodev,noexec,relatime".to_owned();
    assert_eq!(listed(&bench, "b"), Some(("/@home".into(), flags)));
    let write = |place: &str| fs::write(bench.path(place).join("file"), place);
    let refused = |place: &str| {
        let error = write(place).expect_err("it is read-only");
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
    };
    refused("b");
    write("c").expect("it is writable");
    assert_eq!(fs::read(bench.path("b/file")).expect("it is read"), b"c");
    let remount = |place: &str, options: &str| {
        succeeded(&helper(&bench, "mount.buttress", &["image", place, "-o", options]));
    };
    remount("c", "remount,ro");
    refused("c");
    write("a").expect("the other is as it was");
    // When the last mount becomes read-only, the volume does, too. Each of the mounts can make it
    // writable again.
    remount("a", "remount,ro");
    check(&bench.path("image"));
    remount("b", "remount,rw");
    write("b").expect("it is writable");
    refused("a");
    remount("b", "remount,ro");
    mount(&bench, "d", "subvol=@");
    write("d").expect("it is writable");
    bench.ok(&["umount", "a", "b", "c", "d"]);
    ends(&bench);
}

/// The volume is closed with the last mount, whichever mount that is and however it is unmounted.
#[test]
fn the_last_mount_closes_the_volume() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    let away = |how: &[&str], place: &str| {
        let path = bench.path(place);
        run("umount", &[how, &[text(&path)]].concat());
    };
    for order in [["a", "b", "c"], ["c", "b", "a"], ["b", "a", "c"]] {
        mount(&bench, "a", "subvol=@");
        mount(&bench, "b", "subvol=@home");
        mount(&bench, "c", "subvol=@");
        let first = server(&bench).expect("it is served");
        fs::write(bench.path(order[2]).join("last"), order.concat()).expect("it is written");
        // The three ways to unmount: by our verb, by umount(8) without the helper, and lazily while
        // a program uses the mount.
        bench.ok(&["umount", order[0]]);
        away(&["-i"], order[1]);
        assert_eq!(server(&bench), Some(first));
        let open = File::open(bench.path(order[2]).join("last")).expect("it is open");
        away(&["-i", "-l"], order[2]);
        assert_eq!(open.metadata().expect("it is served").len(), 3);
        let output = bench.run(&["mount", "image", "a"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("programs still use it"), "{said}");
        drop(open);
        ends(&bench);
    }
}

/// Binds of a mount keep the volume open. Foreign mounts on top of a mount do no harm.
#[test]
fn binds_and_mounts_on_top_count_as_mounts() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    let path = |place: &str| text(&bench.path(place)).to_owned();
    mount(&bench, "a", "subvol=@");
    fs::create_dir(bench.path("a/folder")).expect("a folder");
    run("mount", &["--bind", &path("a/folder"), &path("b")]);
    run("mount", &["-t", "tmpfs", "none", &path("a/folder")]);
    mount(&bench, "a/folder", "subvol=@home");
    run("mount", &["-t", "tmpfs", "none", &path("b")]);
    fs::write(bench.path("a/folder/file"), "x").expect("it is written");
    bench.fails(&["umount", "a"], 1, &["programs use it"]);
    bench.ok(&["umount", "a/folder"]);
    run("umount", &[&path("a/folder")]);
    bench.ok(&["umount", "a"]);
    assert!(server(&bench).is_some(), "it is bound elsewhere");
    // If only a bind is left, another mount of the volume can begin.
    mount(&bench, "c", "subvol=@home");
    assert_eq!(fs::read(bench.path("c/file")).expect("it is read"), b"x");
    run("umount", &[&path("b")]);
    bench.ok(&["umount", "b"]);
    bench.ok(&["umount", "c"]);
    ends(&bench);
}

/// A mount in a shared subtree appears at the peer too, and goes there too.
#[test]
fn mounts_come_and_go_at_both_peers() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    let said = succeeded(&script(
        &bench,
        "mkdir -p top/a top/b peer
        mount --bind top top; mount --make-shared top; mount --bind top peer
        list() { grep -o \" $PWD/[a-z]*/[ab] \" /proc/self/mountinfo | sed \"s|$PWD/||\" | sort; }
        mount -t buttress $PWD/image top/a -o subvol=@
        mount -t buttress $PWD/image peer/b -o subvol=@home; list
        echo one >peer/a/file; cat top/a/file
        echo two >top/b/file; cat peer/b/file
        umount peer/a; list
        umount top/b; list; echo end",
    ));
    let said: Vec<_> = said.split_whitespace().collect();
    let both = ["peer/a", "peer/b", "top/a", "top/b", "one", "two", "peer/b", "top/b", "end"];
    assert_eq!(said, both);
    assert_eq!(bench.ok(&["cat", "image:/@home/file"]), "two\n");
    ends(&bench);
}

/// Another namespace keeps its copy of a mount until the namespace ends.
#[test]
fn other_namespaces_keep_the_volume() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    mount(&bench, "a", "subvol=@home");
    let script = "echo in; read line; echo $line > a/late; cat a/late";
    let mut inside = std::process::Command::new("sh")
        .args(in_own_namespace(Some(bench.folder()), script, []))
        .current_dir(bench.folder())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = io::BufReader::new(inside.stdout.take().expect("piped"));
    let mut line = String::new();
    io::BufRead::read_line(&mut said, &mut line).expect("it says something");
    run("umount", &["-i", text(&bench.path("a"))]);
    assert!(server(&bench).is_some());
    io::Write::write_all(&mut inside.stdin.take().expect("piped"), b"word\n").expect("it reads");
    assert!(inside.wait().expect("it ends").success());
    assert_eq!(bench.ok(&["cat", "image:/@home/late"]), "word\n");
    ends(&bench);
}

/// A server that is killed leaves errors at every place, and a volume that is whole.
#[test]
fn a_killed_server_ends_all_mounts() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    mount(&bench, "a", "subvol=@");
    mount(&bench, "b", "subvol=@home");
    fs::write(bench.path("b/kept"), "x").expect("it is written");
    File::open(bench.path("b")).and_then(|top| top.sync_all()).expect("it is durable");
    let open = File::open(bench.path("b/kept")).expect("it is open");
    run("kill", &["-KILL", &server(&bench).expect("it is served").to_string()]);
    while server(&bench).is_some() {
        std::thread::yield_now();
    }
    for place in ["a", "b"] {
        let error = fs::metadata(bench.path(place).join("none")).expect_err("nothing serves it");
        // A request that a queue of io_uring got just before the server's end is canceled.
        let of_the_end = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];
        let error = Errno::from_io_error(&error).expect("a number");
        assert!(of_the_end.contains(&error), "{error:?}");
    }
    assert!(open.metadata().is_err());
    drop(open);
    bench.fails(&["mount", "image", "a"], 1, &["unmount it first"]);
    bench.ok(&["umount", "a"]);
    bench.ok(&["umount", "b"]);
    mount(&bench, "a", "subvol=@home");
    assert_eq!(fs::read(bench.path("a/kept")).expect("it is read"), b"x");
    bench.ok(&["umount", "a"]);
    ends(&bench);
}

/// A signal to the server unmounts every mount.
#[test]
fn a_signal_takes_all_mounts_away() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    mount(&bench, "a", "subvol=@");
    fs::create_dir(bench.path("a/home")).expect("a folder");
    mount(&bench, "a/home", "subvol=@home");
    mount(&bench, "b", "subvol=@home");
    fs::write(bench.path("a/home/file"), "x").expect("it is written");
    run("kill", &[&server(&bench).expect("it is served").to_string()]);
    ends(&bench);
    assert_eq!((listed(&bench, "a"), listed(&bench, "b")), (None, None));
    assert_eq!(bench.ok(&["cat", "image:/@home/file"]), "x");
}

/// Mounts a volume at several places at the same moment, each with options. Returns the processes
/// that serve them.
fn mount_together(bench: &Bench, volume: &str, all: &[(&str, &str)]) -> BTreeSet<String> {
    let begin = |(place, options): &(&str, &str)| {
        let mut command = bench.command(&["--json", "mount", volume, place, "-o", options]);
        command.stdout(std::process::Stdio::piped()).spawn().expect("it starts")
    };
    let children: Vec<_> = all.iter().map(begin).collect();
    let pid = |child: std::process::Child| {
        let output = child.wait_with_output().expect("it ends");
        let document: serde_json::Value = serde_json::from_str(&succeeded(&output)).expect("JSON");
        document["pid"].to_string()
    };
    children.into_iter().map(pid).collect()
}

/// Mounts that begin at the same moment, as from units of systemd, find one server.
#[test]
fn mounts_that_begin_together_have_one_server() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    let all = [("a", "subvol=@"), ("b", "subvol=@home"), ("c", "subvol=@home"), ("d", "subvol=/")];
    let pids = mount_together(&bench, "image", &all);
    assert_eq!(pids, BTreeSet::from([server(&bench).expect("it is served").to_string()]));
    fs::write(bench.path("b/file"), "x").expect("it is written");
    assert!(bench.path("c/file").exists() && bench.path("d/@home/file").exists());
    bench.ok(&["umount", "d", "b", "a", "c"]);
    ends(&bench);
}

/// As with images, mounts of a volume in a store that begin at the same moment find one server.
#[test]
fn mounts_of_a_store_that_begin_together_have_one_server() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    let volume = format!("file://{}", bench.path("vol").display());
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    let places = ["a", "b", "c"];
    for place in places {
        fs::create_dir(bench.path(place)).expect("a folder");
    }
    let pids = mount_together(&bench, &volume, &places.map(|place| (place, "rw")));
    assert_eq!(pids.len(), 1, "{pids:?}");
    fs::write(bench.path("a/file"), "x").expect("it is written");
    assert!(bench.path("b/file").exists() && bench.path("c/file").exists());
    bench.ok(&["umount", "a", "b", "c"]);
    bench.ok(&["check", &volume]);
}

/// If a second mount asks for an option that it cannot have, the mount is refused or a message
/// names the option.
#[test]
fn a_second_mount_says_what_it_cannot_have() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    mount(&bench, "a", "subvol=@,compress=zstd:1");
    let output = bench.run(&["mount", "image", "b", "-o", "subvol=@home,compress=lzo,commit=30"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("not compress=lzo\n"), "{said}");
    bench.fails(&["mount", "image", "c", "-o", "subvol=@none"], 1, &["image", "no such file"]);
    bench.fails(&["mount", "image", "b", "-o", "subvol=@home"], 1, &["is mounted on", "already"]);
    bench.fails(&["mount", "image", "none"], 1, &["none"]);
    let again = ["image", text(&bench.path("b")).to_owned().as_str(), "-o", "subvol=@home"]
        .map(str::to_owned);
    let again: Vec<&str> = again.iter().map(String::as_str).collect();
    succeeded(&helper(&bench, "mount.buttress", &again));
    bench.ok(&["umount", "a", "b"]);
    mount(&bench, "a", "subvol=@,rescue=ignoredatacsums,ro");
    let words = ["for reading only", "mount it with ro"];
    bench.fails(&["mount", "image", "b", "-o", "subvol=@home"], 1, &words);
    mount(&bench, "b", "subvol=@home,ro");
    bench.ok(&["umount", "a", "b"]);
    mount(&bench, "a", "submounts");
    bench.fails(&["mount", "image", "b"], 1, &["submounts", "one place"]);
    bench.ok(&["umount", "a"]);
    ends(&bench);
}

/// The lines that Fedora and openSUSE write, with `UUID=` and with `LABEL=`. The usual programs
/// mount the places of these lines, mount them again, and remount, list and unmount them.
#[test]
fn lines_of_an_fstab_are_mounted_together() {
    if !can_mount() || !Path::new("/dev/loop-control").exists() {
        return;
    }
    let fedora = [("root", "root", ""), ("home", "home", ""), ("var", "var", ",ro")];
    let suse = [
        ("@", "root", ""),
        ("@/var", "root/var", ""),
        ("@/home", "root/home", ""),
        ("@/srv", "root/srv", ",nodev"),
        ("@/.snapshots", "root/.snapshots", ""),
    ];
    for (lines, options) in [(&fedora[..], "compress=zstd:1"), (&suse[..], "")] {
        let bench = bench();
        // No other volume has the name of this folder as its label.
        let label = bench.folder().file_name().expect("a name").display().to_string();
        bench.ok(&["mkfs", "image", "--size", "256M", "--label", &label]);
        for (subvolume, ..) in lines {
            bench.ok(&["subvolume", "create", &format!("image:/{subvolume}")]);
        }
        let image = bench.path("image");
        let uuid = bench.ok(&["--json", "info", "image"]);
        let uuid: serde_json::Value = serde_json::from_str(&uuid).expect("JSON");
        let uuid = uuid["fsid"].as_str().or(uuid["uuid"].as_str()).expect("a uuid").to_owned();
        let source =
            if options.is_empty() { format!("LABEL={label}") } else { format!("UUID={uuid}") };
        let mut fstab = String::new();
        for (subvolume, place, more) in lines {
            let place = bench.path(place);
            let place = text(&place);
            let line = format!("{source} {place} buttress subvol={subvolume},{options}{more} 0 0");
            fstab.push_str(&line.replace(",,", ",").replace(", ", " "));
            fstab.push('\n');
        }
        fs::write(bench.path("fstab"), fstab).expect("it is written");
        fs::create_dir(bench.path("root")).expect("a folder");
        for (_, place, _) in lines.iter().filter(|(_, place, _)| !place.contains('/')) {
            fs::create_dir_all(bench.path(place)).expect("a folder");
        }
        let said = succeeded(&script(
            &bench,
            &format!(
                "device=$(losetup --find --show {}); trap 'losetup -d $device' EXIT
                # The list of devices is read while other tests change it, and can lack this one.
                for try in 1 2 3 4 5 6; do findfs {source} >found && break; sleep 0.3; done
                mount -a -T fstab; mount -a -T fstab
                findmnt -rn -t fuseblk.buttress -o FSROOT,TARGET,VFS-OPTIONS |
                grep \"$PWD/\" | sed \"s|$PWD/||\"
                echo x > root/file
                mount -o remount,ro $PWD/root; touch root/no 2>/dev/null && echo wrong
                mount -o remount,rw $PWD/root; echo y > root/file
                findmnt -rn -t fuseblk.buttress -o TARGET | grep \"^$PWD/\" | tac >places
                while read place; do umount $place; done <places
                findmnt -rn -t fuseblk.buttress -o TARGET | grep \"^$PWD/\" || echo none",
                text(&image)
            ),
        ));
        let mut expected = String::new();
        for (subvolume, place, more) in lines {
            let own = match *more {
                ",ro" => "ro,relatime",
                ",nodev" => "rw,nodev,relatime",
                _ => "rw,relatime",
            };
            expected.push_str(&format!("/{subvolume} {place} {own}\n"));
        }
        assert_eq!(said, expected + "none\n");
        let (top, ..) = lines[0];
        assert_eq!(bench.ok(&["cat", &format!("image:/{top}/file")]), "y\n");
        ends(&bench);
    }
}
