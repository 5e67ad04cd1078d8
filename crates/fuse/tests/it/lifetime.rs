//! Lifetimes of files without names, of mounts in use, and of inodes that the kernel knows.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;

use buttress_fuse::Unmounted;
use parking_lot::Mutex;

use crate::mounted::{
    FEW_HANDLES, FEW_KNOWN, KNOWN_MAX, Mounted, mounted, mounted_small, mounted_with,
};

/// A file without a name lives as long as it is open, and its space comes back.
#[test]
fn open_files_outlive_their_names() {
    let Some(mount) = mounted() else { return };
    let path = mount.path("file");
    fs::write(&path, "content").expect("a file");
    let mut file = File::options().read(true).write(true).open(&path).expect("open");
    fs::remove_file(&path).expect("its name");
    assert!(!path.exists());
    file.seek(SeekFrom::End(0)).expect("the end");
    file.write_all(&[b'x'; 100_000]).expect("still a file");
    file.sync_all().expect("durable");
    assert_eq!(file.metadata().expect("attributes").nlink(), 0);
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("the start");
    file.read_to_end(&mut content).expect("content");
    assert_eq!(content.len(), 100_007);
    let ino = buttress_fs::Ino(file.metadata().expect("attributes").ino());
    drop(file);
    let volume = mount.into_volume();
    let fs = crate::volume::open(&volume.image());
    let found = fs.inode(buttress_fs::InodeId { ino, ..fs.root().id() });
    assert!(found.is_err(), "no program holds the file, and it is still there");
    fs.close().expect("nothing to write");
    volume.check_volume();
}

/// If a rename replaces an open file, the programs that have it open keep the old file.
#[test]
fn replaced_files_live_on() {
    let Some(mount) = mounted() else { return };
    fs::write(mount.path("a"), "old").expect("a file");
    fs::write(mount.path("b"), "new").expect("a file");
    let mut old = File::open(mount.path("a")).expect("open");
    fs::rename(mount.path("b"), mount.path("a")).expect("a rename");
    let mut text = String::new();
    old.read_to_string(&mut text).expect("content");
    assert_eq!(text, "old");
    assert_eq!(fs::read_to_string(mount.path("a")).expect("content"), "new");
}

/// Eight threads make, write, read, rename and remove files beside each other.
#[test]
fn many_threads() {
    for handoff in ["handoff", "nohandoff"] {
        let Some(mount) = mounted_with(&format!("threads=6,{handoff}")) else { return };
        fs::create_dir(mount.path("shared")).expect("a directory");
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let mount = &mount;
                scope.spawn(move || work(mount, thread));
            }
        });
        let left = fs::read_dir(mount.path("shared")).expect("a listing").count();
        assert_eq!(left, 8 * 50, "each thread leaves every second of its files");
        let mount = mount.again();
        for entry in fs::read_dir(mount.path("shared")).expect("a listing") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let content = fs::read_to_string(&path).expect("content");
            assert!(content.starts_with(&format!("{name} ")) && content.len() == 10_000, "{name}");
        }
    }
}

fn work(mount: &Mounted, thread: usize) {
    for index in 0..100 {
        let name = format!("t{thread}-{index}");
        let (draft, path) =
            (mount.path(&format!("draft-{name}")), mount.path("shared").join(&name));
        fs::write(&draft, format!("{name:<10000}")).expect("a file");
        if index % 10 == 0 {
            File::open(&draft).expect("open").sync_all().expect("durable");
        }
        fs::rename(&draft, &path).expect("a rename");
        assert_eq!(fs::read(&path).expect("content").len(), 10_000);
        if index % 2 == 1 {
            fs::remove_file(&path).expect("its name");
        }
    }
}

/// An unmounted volume that is in use goes out of sight at once, and its mount ends with the last
/// user.
#[test]
fn busy_mounts_end_late() {
    let Some(mut mount) = mounted() else { return };
    let mut file = File::create(mount.path("file")).expect("a file");
    assert_eq!(mount.unmount(), Unmounted::Busy);
    assert!(!mount.path("file").exists(), "no path leads to the mount any more");
    file.write_all(b"late").expect("a program that has it open may go on");
    drop(file);
    mount.finish();
    let mount = mount.again();
    assert_eq!(fs::read(mount.path("file")).expect("content"), b"late");
}

/// `statvfs` shows the sizes of the volume, and less free space as it fills.
#[test]
fn sizes_of_the_volume() {
    let Some(mount) = mounted() else { return };
    let before = rustix::fs::statvfs(mount.path("")).expect("sizes");
    assert!(before.f_blocks * before.f_frsize >= 100 << 20);
    assert_eq!(before.f_namemax, 255);
    let mut file = File::create(mount.path("file")).expect("a file");
    file.write_all(&vec![1; 32 << 20]).expect("content");
    file.sync_all().expect("durable");
    let after = rustix::fs::statvfs(mount.path("")).expect("sizes");
    let taken = (before.f_bfree - after.f_bfree) * before.f_frsize;
    assert!((32 << 20..40 << 20).contains(&taken), "{taken} bytes for 32 MiB");
}

/// Held while a volume is full. A process that another test starts inherits the open files of this
/// process. Its `exec` closes these files one by one, on every mount. Each close waits until the
/// data of the file has room. So one full volume could keep a file of another volume open for a
/// second.
static FULL: Mutex<()> = Mutex::new(());

/// D3: a program that writes until the volume is full gets the error from a write. Once the program
/// has removed something, there is room again.
#[test]
fn full_volumes_are_reported() {
    let _alone = FULL.lock();
    let Some(mount) = mounted_small(256 << 20, "") else { return };
    let piece = vec![7; 1 << 20];
    for round in 0..3 {
        let mut file = File::create(mount.path("fill")).expect("a file");
        let failed = (0..512).find_map(|_| file.write_all(&piece).err());
        let failed = failed.expect("512 MiB do not fit");
        assert_eq!(failed.kind(), std::io::ErrorKind::StorageFull, "round {round}");
        drop(file);
        let len = fs::metadata(mount.path("fill")).expect("attributes").len();
        if len <= 64 << 20 {
            // The output shows whether room comes late or never.
            for wait in [0, 10, 100, 1000, 3000] {
                std::thread::sleep(std::time::Duration::from_millis(wait));
                let stat = rustix::fs::statvfs(mount.path("")).expect("sizes");
                eprintln!("after {wait} ms {} bytes are free", stat.f_bfree * stat.f_frsize);
            }
            panic!("only {len} bytes before the volume was full, round {round}");
        }
        fs::remove_file(mount.path("fill")).expect("its name");
        let mut little = File::create(mount.path("little")).expect("a file");
        little.write_all(&piece).expect("room");
        little.sync_all().expect("durable");
    }
}

/// A request that needs room waits for a file that lost its name a moment ago. The kernel releases
/// such a file only some time after the program's close returns.
#[test]
fn space_is_freed_with_the_last_user() {
    let _alone = FULL.lock();
    let Some(mount) = mounted_small(256 << 20, "") else { return };
    room_comes(&mount);
}

/// With few threads, too, a request that needs room gets the room. While writes wait, a thread
/// still receives the requests of the kernel.
#[test]
fn room_comes_where_threads_are_few() {
    let _alone = FULL.lock();
    let Some(mount) = mounted_small(256 << 20, "threads=2") else { return };
    room_comes(&mount);
}

fn room_comes(mount: &Mounted) {
    let piece = vec![7; 1 << 20];
    // On a busy machine the kernel may release the file later than any request waits, so the test
    // tries several times.
    let durable = (0..4).any(|_| {
        let mut fill = File::create(mount.path("fill")).expect("a file");
        (0..512).find_map(|_| fill.write_all(&piece).err()).expect("512 MiB do not fit");
        drop(fill);
        let user = File::open(mount.path("fill")).expect("open");
        fs::remove_file(mount.path("fill")).expect("its name");
        let mut little = File::create(mount.path("little")).expect("a file");
        let written = little.write_all(&piece);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(50));
                drop(user);
            });
            written.and_then(|()| little.sync_all()).is_ok()
        })
    });
    assert!(durable, "no room came");
}

/// A file that a program has open keeps its space, and a request that needs this space gets an
/// error in the end.
#[test]
fn open_files_keep_their_space() {
    let _alone = FULL.lock();
    let Some(mount) = mounted_small(256 << 20, "") else { return };
    let piece = vec![7; 1 << 20];
    let mut fill = File::create(mount.path("fill")).expect("a file");
    (0..512).find_map(|_| fill.write_all(&piece).err()).expect("512 MiB do not fit");
    fs::remove_file(mount.path("fill")).expect("its name");
    let mut little = File::create(mount.path("little")).expect("a file");
    let failed = little.write_all(&piece).and_then(|()| little.sync_all());
    assert_eq!(failed.expect_err("no room").kind(), std::io::ErrorKind::StorageFull);
    drop(fill);
}

/// A read-only mount shows everything and changes nothing.
#[test]
fn read_only_mounts() {
    let Some(mount) = mounted_with("ro") else { return };
    let refused = fs::write(mount.path("file"), "").expect_err("read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

/// Inodes that the kernel knows and no program has open keep no handle. Their names and contents
/// can be used as if they had a handle. An inode that loses its last name stays for programs that
/// hold it.
#[test]
fn idle_inodes_do_without_handles() {
    let Some(mount) = mounted_with(FEW_HANDLES) else { return };
    let name = |number: usize| mount.path(&format!("f{number}"));
    for number in 0..2_000 {
        fs::write(name(number), format!("{number}")).expect("a file");
    }
    // For the server, a file opened with `O_PATH` is not open.
    let held: Vec<_> = (0..20)
        .map(|number| {
            let flags = rustix::fs::OFlags::PATH;
            rustix::fs::open(name(number), flags, rustix::fs::Mode::empty()).expect("a path")
        })
        .collect();
    let open: Vec<_> = (20..40).map(|number| File::open(name(number)).expect("open")).collect();
    for number in 0..2_000 {
        assert_eq!(fs::read_to_string(name(number)).expect("content"), format!("{number}"));
    }
    for number in 0..10 {
        fs::remove_file(name(number)).expect("its name");
        fs::rename(name(number + 100), name(number + 10)).expect("over it");
        fs::remove_file(name(number + 20)).expect("its name");
        fs::rename(name(number + 200), name(number + 30)).expect("over it");
    }
    for number in 300..2_000 {
        fs::write(name(number), "new").expect("written");
        assert_eq!(fs::metadata(name(number)).expect("attributes").nlink(), 1);
    }
    for path in &held {
        assert_eq!(rustix::fs::fstat(path).expect("it is held").st_nlink, 0);
    }
    for (number, mut file) in (20..40).zip(open) {
        let mut text = String::new();
        file.read_to_string(&mut text).expect("content");
        assert_eq!((text, file.metadata().expect("it is open").nlink()), (format!("{number}"), 0));
    }
    drop(held);
    let mount = mount.again();
    assert_eq!(fs::read_dir(mount.path("")).expect("a listing").count(), 1_960);
}

/// Directories that no program uses keep no handle. A listing goes on to its end, and the names in
/// such a directory can be used as before. A removed directory stays for a program that is in it.
#[test]
fn idle_directories_do_without_handles() {
    let Some(mount) = mounted_with(FEW_HANDLES) else { return };
    let name = |number: usize| mount.path(&format!("d{number}"));
    for number in 0..2_000 {
        fs::create_dir(name(number)).expect("a directory");
    }
    for number in 0..1_000 {
        fs::write(name(0).join(format!("f{number}")), "").expect("a file");
    }
    // Between two requests of the listing many other directories are used, so that the listed
    // directory loses its handle.
    let (mut listed, mut others) = (0, (1..2_000).cycle());
    for entry in fs::read_dir(name(0)).expect("a listing") {
        listed += 1;
        assert!(listed <= 1_000, "what is new is listed, too");
        let path = entry.expect("an entry").path();
        fs::rename(&path, path.with_file_name(format!("new{listed}"))).expect("moved");
        for other in others.by_ref().take(4) {
            drop(fs::remove_file(name(other).join("file")));
            fs::write(name(other).join("file"), "").expect("a file");
        }
    }
    assert_eq!(listed, 1_000);
    let flags = rustix::fs::OFlags::PATH;
    let held: Vec<_> = (10..30)
        .map(|number| {
            rustix::fs::open(name(number), flags, rustix::fs::Mode::empty()).expect("a path")
        })
        .collect();
    for number in 30..2_000 {
        assert!(fs::metadata(name(number).join("file")).is_ok());
    }
    for number in 10..20 {
        fs::remove_file(name(number).join("file")).expect("its name");
        fs::remove_dir(name(number)).expect("its name");
        fs::remove_file(name(number + 10).join("file")).expect("its name");
        fs::rename(name(number + 100), name(number + 10)).expect("over it");
    }
    for number in 200..2_000 {
        assert!(fs::metadata(name(number).join("file")).is_ok());
    }
    for path in &held {
        let stat = rustix::fs::fstat(path).expect("it is held");
        assert_eq!(stat.st_nlink, 0);
    }
    drop(held);
    let mount = mount.again();
    assert_eq!(fs::read_dir(mount.path("")).expect("a listing").count(), 1_980);
    assert_eq!(fs::read_dir(mount.path("d0")).expect("a listing").count(), 1_000);
}

/// If the kernel knows more inodes than the limit, the server tells the kernel to forget unused
/// inodes. Inodes that are open, held or written stay as they are.
#[test]
fn the_kernel_forgets_what_is_above_the_limit() {
    let Some(mut mount) = mounted_with(FEW_KNOWN) else { return };
    let top = mount.path("");
    let name = |number: usize| top.join(format!("d{}/f{number}", number / 100));
    for number in 0..2_000 {
        fs::create_dir_all(name(number).parent().expect("a directory")).expect("it is made");
        fs::write(name(number), format!("{number}")).expect("a file");
    }
    let flags = rustix::fs::OFlags::PATH;
    let held = rustix::fs::open(name(0), flags, rustix::fs::Mode::empty()).expect("a path");
    let mut open = File::options().read(true).append(true).open(name(1)).expect("open");
    open.write_all(b" and more").expect("written");
    fs::remove_file(name(0)).expect("its name");
    for round in 0..3 {
        for number in 1..2_000 {
            fs::metadata(name(number)).expect("attributes");
        }
        // The kernel may forget the inodes late.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let mut number = 1;
        while mount.known() > KNOWN_MAX {
            assert!(std::time::Instant::now() < deadline, "round {round}: {}", mount.known());
            std::thread::sleep(std::time::Duration::from_millis(10));
            number = number % 1_999 + 1;
            fs::metadata(name(number)).expect("attributes");
        }
    }
    assert_eq!(rustix::fs::fstat(&held).expect("it is held").st_nlink, 0);
    drop(held);
    open.seek(SeekFrom::Start(0)).expect("the start");
    let mut text = String::new();
    open.read_to_string(&mut text).expect("content");
    assert_eq!(text, "1 and more");
    drop(open);
    for number in 2..2_000 {
        assert_eq!(fs::read_to_string(name(number)).expect("content"), format!("{number}"));
    }
}
