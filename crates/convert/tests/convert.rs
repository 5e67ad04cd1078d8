//! Conversions of file systems that mke2fs makes, back and forth, and killed at any write.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use buttress_base::Rng;
use buttress_block::{Device, Error as DeviceError, Layer, MemoryDevice, Operation};
use buttress_convert::{Back, Error, Label, Options, Tally, convert};
use buttress_format::CsumType;
use buttress_fs::{FileKind, Filesystem, Inode, MountOptions, NewInode};

const MIB: usize = 1 << 20;
static ZEROS: [u8; 65536] = [0; 65536];

fn rollback(device: &Arc<dyn Device>) -> Result<Back, Error> {
    buttress_convert::rollback(device, MountOptions::default())
}

fn options() -> Options {
    Options {
        label: Label::Same,
        has_sums: true,
        csum: CsumType::Crc32c,
        nodesize: 16384,
        mount: MountOptions::default(),
        check_bytes: 64 << 20,
    }
}

fn turn(device: &Arc<dyn Device>, options: &Options) -> Result<Tally, Error> {
    convert(Arc::clone(device), options, &mut |_| ())
}

/// A folder with each kind of file that a program without privileges can make.
fn fill(top: &Path) {
    let at = |name: &str| top.join(name);
    fs::create_dir_all(at("a/b")).expect("made");
    for i in 0..400 {
        fs::write(at(&format!("a/b/a_name_that_takes_room_{i}")), format!("{i}")).expect("written");
    }
    let mut noise = vec![0; 3 * MIB + 777];
    Rng::new(7).fill(&mut noise);
    fs::write(at("big"), &noise).expect("written");
    fs::hard_link(at("big"), at("a/again")).expect("linked");
    fs::write(at("tail"), &noise[..4097]).expect("written");
    let sparse = fs::File::create(at("sparse")).expect("made");
    sparse.write_all_at(&noise[..9000], 700_000).expect("written");
    sparse.set_len(5_000_001).expect("grown");
    fs::write(at("empty"), "").expect("written");
    symlink("a/b", at("short")).expect("linked");
    symlink("x".repeat(300), at("long")).expect("linked");
    fs::set_permissions(at("tail"), fs::Permissions::from_mode(0o4751)).expect("set");
}

/// An image that mke2fs makes of the folder. `None` if this machine has no mke2fs.
fn image(words: &[&str], folder: &Path, len: usize) -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("image");
    fs::File::create(&path).and_then(|file| file.set_len(len as u64)).expect("made");
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-b", "4096", "-L", "old name", "-d"])
        .arg(folder)
        .args(words)
        .arg(&path)
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .status();
    match made {
        Ok(status) => assert!(status.success(), "mkfs.ext4 {words:?}"),
        Err(error) if std::env::var_os("BUTTRESS_REQUIRE_LINUX").is_none() => {
            eprintln!("SKIPPED: no mkfs.ext4: {error}");
            return None;
        }
        Err(error) => panic!("mkfs.ext4: {error}"),
    }
    Some(fs::read(&path).expect("read"))
}

fn memory(bytes: &[u8]) -> Arc<dyn Device> {
    let device = MemoryDevice::new(bytes.len() as u64);
    device.write_at(0, bytes).expect("memory");
    Arc::new(device)
}

fn content(device: &Arc<dyn Device>) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).expect("memory");
    bytes
}

/// Checks that e2fsck finds nothing wrong with an image.
fn expect_sound(bytes: &[u8]) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(bytes.len() as u64).expect("grown");
    for (index, part) in bytes.chunks(65536).enumerate().filter(|(_, part)| **part != ZEROS[..]) {
        file.as_file().write_all_at(part, index as u64 * 65536).expect("written");
    }
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let run = Command::new("e2fsck").arg("-fn").arg(file.path()).env("PATH", path).output();
    let run = run.expect("e2fsck runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}

/// Compares a folder of this machine with a directory of the volume.
fn compare(host: &Path, dir: &Inode) {
    let mut names: BTreeMap<Vec<u8>, Inode> = BTreeMap::new();
    let mut found = Vec::new();
    dir.read_dir(0, |entry| {
        found.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })
    .expect("listed");
    for name in found {
        names.insert(name.clone(), dir.lookup(&name).expect("there"));
    }
    names.remove(&b"lost+found"[..]);
    names.remove(&b"ext2_saved"[..]);
    let mut here: Vec<_> = fs::read_dir(host).expect("listed").map(|e| e.expect("one")).collect();
    here.sort_by_key(fs::DirEntry::file_name);
    let listed: Vec<_> = here.iter().map(|entry| entry.file_name().as_bytes().to_vec()).collect();
    assert_eq!(names.keys().cloned().collect::<Vec<_>>(), listed, "{}", host.display());
    for entry in here {
        let (path, inode) = (entry.path(), &names[entry.file_name().as_bytes()]);
        let (meta, attr) = (entry.metadata().expect("there"), inode.attr());
        let about = path.display();
        assert_eq!(
            (attr.mode, attr.uid, attr.gid),
            (meta.mode(), meta.uid(), meta.gid()),
            "{about}"
        );
        assert_eq!(attr.mtime.sec, meta.mtime(), "{about}");
        match inode.kind() {
            FileKind::Directory => compare(&path, inode),
            FileKind::Symlink => {
                let target = fs::read_link(&path).expect("read");
                assert_eq!(
                    inode.read_link().expect("read"),
                    target.as_os_str().as_bytes(),
                    "{about}"
                );
            }
            _ => {
                assert_eq!(attr.nlink, meta.nlink() as u32, "{about}");
                let mut bytes = vec![0; attr.size as usize];
                assert_eq!(inode.read_at(0, &mut bytes).expect("read"), bytes.len());
                assert!(bytes == fs::read(&path).expect("read"), "{about}");
            }
        }
    }
}

fn mount(device: &Arc<dyn Device>, words: &str) -> Filesystem {
    let options = MountOptions::parse(words).expect("options");
    Filesystem::open(vec![Arc::clone(device)], options).expect("it opens")
}

/// Each kind of ext2, ext3 and ext4 becomes a volume with the same files, is written, and comes
/// back as it was.
#[test]
fn file_systems_become_volumes_and_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    fill(folder.path());
    let kinds: [&[&str]; 9] = [
        &[],
        &["-O", "^extent,^64bit,^flex_bg,^metadata_csum"],
        &["-O", "^has_journal,^resize_inode,meta_bg"],
        &["-O", "^resize_inode,sparse_super2"],
        &["-O", "^sparse_super,^resize_inode", "-I", "128"],
        &["-O", "project", "-I", "512"],
        &["-O", "^dir_index,^ext_attr,^large_file", "-m", "0"],
        &["-g", "4096", "-G", "4"],
        &["-O", "metadata_csum_seed,large_dir,stable_inodes"],
    ];
    for (index, words) in kinds.into_iter().enumerate() {
        let len = if index == 7 { 160 * MIB } else { 64 * MIB };
        let Some(old) = image(words, folder.path(), len) else { return };
        let device = memory(&old);
        let has_sums = index != 6;
        let how = Options { has_sums, ..options() };
        let tally = turn(&device, &how).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        assert!(tally.inodes > 400 && tally.kept_bytes > 3 << 20, "{words:?}: {tally:?}");

        let fs = mount(&device, "");
        compare(folder.path(), &fs.root());
        assert_eq!(fs.superblock().label[..9], *b"old name\0", "{words:?}");
        let more = fs.root().create(b"more", NewInode::file(0o644)).expect("made");
        more.write_at(0, &vec![3; 4 * MIB]).expect("written");
        fs.resolve("big").and_then(|file| file.write_at(5000, b"changed")).expect("written");
        fs.root().unlink(b"tail").expect("removed");
        fs.close().expect("closed");
        let checked = buttress_check::Options { check_data_csum: true, ..Default::default() };
        let devices = vec![Arc::clone(&device)];
        let report = buttress_check::check_devices(devices, &checked, &buttress_check::NoProgress);
        assert!(report.expect("checked").is_clean(), "{words:?}");

        rollback(&device).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        let back = content(&device);
        expect_sound(&back);
        turn(&device, &how).expect("it can be converted again");
        let fs = mount(&device, "ro");
        compare(folder.path(), &fs.root());
    }
}

/// A file system that cannot be converted is not changed.
#[test]
fn refused_file_systems_stay_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    fill(folder.path());
    let feature = |error: &Error| matches!(error, Error::Feature(_));
    let unclean = |error: &Error| matches!(error, Error::NotClean(_));
    let expect = |old: &[u8], is_right: &dyn Fn(&Error) -> bool| {
        let device = memory(old);
        let error = turn(&device, &options()).expect_err("it is refused");
        assert!(is_right(&error), "{error}");
        assert!(content(&device) == old, "{error}: it has changed");
        assert!(matches!(rollback(&device), Err(Error::Volume(_))), "it is no volume");
    };
    for words in [&["-b", "1024"][..], &["-O", "bigalloc"], &["-O", "inline_data"]] {
        let Some(old) = image(words, folder.path(), 64 * MIB) else { return };
        expect(&old, &feature);
    }
    let Some(mut old) = image(&["-O", "^metadata_csum"], folder.path(), 64 * MIB) else { return };
    // The superblock can record three reasons to refuse: not unmounted, a journal to replay, a
    // deleted file that was open.
    for (at, byte) in [(0x3a, 0), (0x60, old[1024 + 0x60] | 4), (0xe8, 12)] {
        let before = std::mem::replace(&mut old[1024 + at], byte);
        expect(&old, &unclean);
        old[1024 + at] = before;
    }
    expect(&vec![0; 16 * MIB], &|error| matches!(error, Error::NotExt));

    fs::create_dir(folder.path().join("ext2_saved")).expect("made");
    let Some(old) = image(&[], folder.path(), 64 * MIB) else { return };
    let device = memory(&old);
    assert!(matches!(turn(&device, &options()), Err(Error::Taken)));
    assert!(mke2fs_owns(&old, &content(&device)));
}

/// Whether an image has the file system of another image: e2fsck finds no fault, and the
/// superblocks are equal.
fn mke2fs_owns(old: &[u8], new: &[u8]) -> bool {
    expect_sound(new);
    old[..2048] == new[..2048]
}

/// A file system without room for the trees stays what it is.
#[test]
fn a_full_file_system_stays_what_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut noise = vec![0; 46 * MIB];
    Rng::new(3).fill(&mut noise);
    fs::write(folder.path().join("big"), &noise).expect("written");
    let Some(old) = image(&["-m", "0"], folder.path(), 64 * MIB) else { return };
    let device = memory(&old);
    let error = turn(&device, &options()).expect_err("it is full");
    assert!(matches!(error, Error::NoRoom(_)), "{error}");
    assert!(content(&device) == old);
}

/// A device that fails all writes after a number of successful writes.
#[derive(Debug)]
struct Failing {
    device: Arc<dyn Device>,
    left: AtomicI64,
}

impl Layer for Failing {
    type Inner = dyn Device;

    fn inner(&self) -> &Self::Inner {
        &*self.device
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        if self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return self.device.write_at(offset, buf);
        }
        let (operation, device, len) = (Operation::Write, "failing".to_owned(), buf.len() as u64);
        let source = std::io::Error::other("the test ends here");
        Err(DeviceError::Io { operation, device, offset, len, source })
    }
}

/// At each write a conversion, and a rollback, may be killed. Before the last step, the device has
/// the old content. After the last step, the device has the new content.
#[test]
fn a_killed_conversion_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    fill(folder.path());
    let Some(old) = image(&[], folder.path(), 64 * MIB) else { return };
    let run = |device: &Arc<dyn Device>, writes: i64| {
        let failing = Failing { device: Arc::clone(device), left: AtomicI64::new(writes) };
        let failing: Arc<Failing> = Arc::new(failing);
        let result = turn(&(Arc::clone(&failing) as Arc<dyn Device>), &options()).map(drop);
        (result, failing.left.load(Ordering::SeqCst))
    };
    let whole = memory(&old);
    let (done, left) = run(&whole, i64::MAX);
    done.expect("it is converted");
    let writes = i64::MAX - left;
    let mut tried: Vec<i64> = (writes - 8..writes).collect();
    let mut rng = Rng::new(11);
    tried.extend((0..5).map(|_| (rng.next_u64() % writes as u64) as i64));
    for writes in tried {
        let device = memory(&old);
        run(&device, writes).0.expect_err("it is killed");
        let now = content(&device);
        let is_volume = now[0x1_0040..0x1_0048] == *b"_BHRfS_M";
        if !is_volume {
            assert!(now[..2 * 65536] == old[..2 * 65536], "after {writes} writes");
            expect_sound(&now);
            turn(&device, &options()).expect("it can be converted still");
        }
        let fs = mount(&device, "ro");
        compare(folder.path(), &fs.root());
        drop(fs);
        rollback(&device).expect("it comes back");
        expect_sound(&content(&device));
    }

    let volume = content(&whole);
    let back = |writes: i64| {
        let device = memory(&volume);
        let failing = Failing { device: Arc::clone(&device), left: AtomicI64::new(writes) };
        let failing: Arc<Failing> = Arc::new(failing);
        let done = rollback(&(Arc::clone(&failing) as Arc<dyn Device>));
        (device, done.is_ok(), failing.left.load(Ordering::SeqCst))
    };
    let writes = i64::MAX - back(i64::MAX).2;
    for kept in (0..writes).step_by(71).chain([writes - 1]) {
        let (device, is_done, _) = back(kept);
        assert!(!is_done, "{kept} of {writes}");
        rollback(&device).expect("it can be rolled back still");
        expect_sound(&content(&device));
    }
}

/// A damaged file system gives errors, and nothing is changed.
#[test]
fn damaged_file_systems_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    fill(folder.path());
    let Some(old) = image(&["-O", "^metadata_csum"], folder.path(), 48 * MIB) else { return };
    let mut rng = Rng::new(5);
    let (mut refused, mut converted) = (0, 0);
    for _ in 0..40 {
        let mut bad = old.clone();
        // Superblock, descriptors, bitmaps, inodes and directories all lie at the start.
        let from = if rng.next_u64().is_multiple_of(4) { 1024..2048 } else { 2048..3 * MIB as u64 };
        for _ in 0..1 + rng.next_u64() % 40 {
            let at = from.start + rng.next_u64() % (from.end - from.start);
            bad[at as usize] =
                if rng.next_u64().is_multiple_of(2) { 0xff } else { rng.next_u64() as u8 };
        }
        let device = memory(&bad);
        match turn(&device, &options()) {
            Ok(_) => converted += 1,
            Err(Error::Damaged(what)) => panic!("a fault of the program: {what}"),
            Err(_) => {
                assert!(content(&device)[..2 * 65536] == bad[..2 * 65536]);
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && converted > 0, "{refused} refused, {converted} converted");
}
