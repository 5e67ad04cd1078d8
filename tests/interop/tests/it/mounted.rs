//! Ordinary programs on a mount of ours: their files are there after the next mount, Linux sees the
//! same files, and `btrfs check` finds nothing.

use std::path::{Path, PathBuf};

use buttress_interop::linux::{Images, can_mount_fuse, has_linux_btrfs, has_program, run};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::program::{Mounted, buttress};
use buttress_interop::sample::{Folder, Scale, change, fill};
use buttress_interop::scratch::Scratch;

use crate::open::manifest;

/// A volume that the program made, and checks of its content.
pub(crate) struct Volume {
    pub(crate) images: Images,
}

impl Volume {
    pub(crate) fn new(size: &str) -> Self {
        // The program makes the file, so only the folder is needed here.
        let images = Images::new(1, 0);
        std::fs::remove_file(images.path()).expect("it was just made");
        buttress(["mkfs", images.path().to_str().expect("ASCII"), "--size", size]);
        Self { images }
    }

    #[track_caller]
    pub(crate) fn mount(&self) -> Mounted {
        Mounted::new(self.images.path(), "")
    }

    /// Unmounts and compares the mount's tree with all other views afterwards.
    #[track_caller]
    pub(crate) fn check_volume(&self, mount: Mounted) -> Manifest {
        let before = Manifest::of_folder(mount.path());
        mount.unmount();
        if has_program("btrfs") {
            self.images.check();
        }
        let mount = self.mount();
        let after = Manifest::of_folder(mount.path());
        mount.unmount();
        before.assert_same("the mount", &after, "the next mount", Depth::Copy);
        let library = manifest(self.images.paths());
        before.assert_same("the mount", &library, "the library", Depth::Copy);
        if has_linux_btrfs() {
            let mount = self.images.mount("ro");
            let linux = Manifest::of_folder(mount.path());
            mount.unmount();
            linux.assert_same("Linux", &library, "the library", Depth::Volume);
        }
        after
    }
}

/// Whether the tests here can run. Prints a message if they cannot.
pub(crate) fn ready() -> bool {
    can_mount_fuse() && rustix::process::geteuid().is_root()
}

/// A folder with the sample tree, to copy from.
fn source(scale: &Scale) -> Scratch {
    let scratch = Scratch::new();
    let folder = scratch.join("source");
    std::fs::create_dir(&folder).expect("a folder");
    fill(&Folder::new(&folder), scale);
    // This file is too long for programs that do not skip holes.
    std::fs::remove_file(folder.join("holes/a tebibyte")).expect("a file");
    scratch
}

fn larger() -> Scale {
    Scale { dirs: 60, files: 50, big_bytes: 8 << 20, ..Scale::default() }
}

/// The sample tree is made by system calls, and changed in later mounts, with changes by Linux in
/// between.
#[test]
fn the_sample_in_rounds() {
    if !ready() {
        return;
    }
    let volume = Volume::new("1G");
    let scale = Scale::default();
    let mount = volume.mount();
    fill(&Folder::new(mount.path()), &scale);
    volume.check_volume(mount);
    for round in [1, 3] {
        let mount = volume.mount();
        change(&Folder::new(mount.path()), &scale, round);
        let ours = volume.check_volume(mount);
        if has_linux_btrfs() {
            let mount = volume.images.mount("");
            change(&Folder::new(mount.path()), &scale, round + 1);
            let linux = Manifest::of_folder(mount.path());
            mount.unmount();
            assert!(linux.differences(&ours, Depth::Copy).len() > 10, "Linux changed nothing");
            let mount = volume.mount();
            let seen = Manifest::of_folder(mount.path());
            mount.unmount();
            linux.assert_same("Linux", &seen, "the mount", Depth::Copy);
        } else {
            return;
        }
    }
}

/// `cp -a`, `tar` and `rsync` copy a tree of several thousand files, and the copies are equal to
/// the tree.
#[test]
fn copies() {
    if !ready() {
        return;
    }
    let scratch = source(&larger());
    let from = scratch.join("source");
    let source = Manifest::of_folder(&from);
    let from = from.display();
    let volume = Volume::new("2G");
    let mount = volume.mount();
    mount.shell(&format!(
        "cp -a --sparse=always '{from}' copied
         mkdir untarred
         tar --xattrs --xattrs-include='*' --acls -cSf - -C '{from}' . |
             tar --xattrs --xattrs-include='*' --acls -xpf - -C untarred
         rsync -aHAXS --modify-window=-1 '{from}/' synchronised",
    ));
    for copy in ["copied", "untarred", "synchronised"] {
        let copy_manifest = Manifest::of_folder(&mount.path().join(copy));
        same_copy(&source, copy_manifest, copy);
    }

    // The source is changed, and rsync updates the copies, in place and with new files.
    let changed = Folder::new(&scratch.join("source"));
    std::fs::write(scratch.join("source/holes/a tebibyte"), "small now").expect("a file");
    change(&changed, &larger(), 1);
    std::fs::remove_file(scratch.join("source/holes/a tebibyte")).expect("a file");
    let source = Manifest::of_folder(&scratch.join("source"));
    mount.shell(&format!(
        "rsync -aHAXS --modify-window=-1 --delete --checksum '{from}/' synchronised
         rsync -aHAX --modify-window=-1 --delete --inplace --no-whole-file --checksum '{from}/' copied
         rm -r untarred",
    ));
    for copy in ["copied", "synchronised"] {
        same_copy(&source, Manifest::of_folder(&mount.path().join(copy)), copy);
    }
    volume.check_volume(mount);
}

/// Compares a copy, except for the properties that its tools do not keep.
#[track_caller]
fn same_copy(source: &Manifest, mut copy: Manifest, what: &str) {
    for (path, entry) in &mut copy.entries {
        // tar makes no sockets.
        if let Some(there) = source.entries.get(path)
            && there.mode & 0o170_000 == 0o140_000
        {
            *entry = there.clone();
        }
    }
    let mut source = source.clone();
    source.entries.retain(|path, entry| {
        entry.mode & 0o170_000 != 0o140_000 || copy.entries.contains_key(path)
    });
    // Only the times of a directory may differ if the copy lacks the directory's socket. Everything
    // else must be equal.
    source.assert_same("the source", &copy, what, Depth::Copy);
}

/// A git repository is made, committed to, packed, cloned and checked.
#[test]
fn git() {
    if !ready() {
        return;
    }
    let volume = Volume::new("1G");
    let mount = volume.mount();
    let scratch = source(&Scale { dirs: 40, files: 40, ..Scale::default() });
    let from = scratch.join("source");
    mount.shell(&format!(
        "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
         git init -q repository; cd repository
         git config user.name test; git config user.email test@example.org
         cp -r '{0}/small' '{0}/big' .
         git add .; git commit -qm first
         for round in $(seq 10); do
             for file in small/d00$((round - 1))/*; do echo $round >> \"$file\"; done
             git add .; git commit -qm \"round $round\"
         done
         git gc -q --prune=now; git fsck --strict
         git clone -q . ../clone; git clone -q --no-local . ../copy
         cd ../clone; git fsck --strict; git checkout -q HEAD~5; git checkout -q -
         git status --porcelain | wc -l | grep -qx 0
         diff -r --exclude=.git . ../copy",
        from.display()
    ));
    volume.check_volume(mount);
}

/// A database with each kind of journal, which several processes write at a time.
#[test]
fn sqlite() {
    if !ready() {
        return;
    }
    let volume = Volume::new("1G");
    let mount = volume.mount();
    mount.shell(
        r#"for mode in wal delete truncate persist; do
             sqlite3 $mode.db "pragma journal_mode=$mode;
                 create table t(id integer primary key, owner int, body blob);" > /dev/null
             for owner in 1 2 3; do
                 { echo ".timeout 60000"
                   for turn in $(seq 15); do
                       echo "begin immediate;"
                       for row in $(seq 20); do
                           echo "insert into t(owner, body) values($owner, randomblob(($row * 331) % 5000));"
                       done
                       echo "delete from t where id % 7 = $owner; commit;"
                   done; } | sqlite3 $mode.db &
             done
             wait
             test "$(sqlite3 $mode.db 'pragma integrity_check')" = ok
             sqlite3 $mode.db "vacuum; pragma integrity_check;" | grep -qx ok
         done
         sqlite3 wal.db .dump | sha256sum > wal.sum"#,
    );
    volume.check_volume(mount);
    let mount = volume.mount();
    mount.shell(
        "sqlite3 wal.db .dump | sha256sum | cmp - wal.sum
         for db in *.db; do test \"$(sqlite3 $db 'pragma integrity_check')\" = ok; done",
    );
    mount.unmount();
}

/// fio reads back the bytes that it wrote: through the page cache, with direct I/O, and through
/// mappings.
#[test]
fn fio() {
    if !ready() {
        return;
    }
    let volume = Volume::new("2G");
    let mount = volume.mount();
    let directory = format!("--directory={}", mount.path().display());
    let common = [
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--group_reporting",
        "--size=24m",
        "--numjobs=2",
        "--randseed=1",
        "--fallocate=none",
        "--end_fsync=1",
        "--verify_state_save=0",
        &directory,
    ];
    for (name, words) in [
        ("buffered", &["--rw=randwrite", "--bsrange=512-200k", "--ioengine=psync"][..]),
        (
            "direct",
            &["--rw=randwrite", "--bs=4k", "--direct=1", "--ioengine=libaio", "--iodepth=8"],
        ),
        ("mapped", &["--rw=randwrite", "--bs=4k", "--ioengine=mmap"]),
        ("synced", &["--rw=randwrite", "--bs=16k", "--ioengine=psync", "--fsync=64"]),
        ("streamed", &["--rw=write", "--bs=1m", "--ioengine=psync"]),
    ] {
        let name = format!("--name={name}");
        let words = common.iter().chain(words).copied().chain([name.as_str()]);
        run("fio", words);
    }
    volume.check_volume(mount);
}

/// As in a parallel build, many processes make, replace, read and remove files in the same places.
#[test]
fn churn() {
    if !ready() {
        return;
    }
    let volume = Volume::new("1G");
    let mount = volume.mount();
    mount.shell(
        "mkdir objects sources
         for number in $(seq 400); do echo \"source $number\" > sources/$number.c; done
         build() {
             for number in $(seq $1 8 400); do
                 { cat sources/$number.c; head -c $((number * 97 % 30000)) /dev/urandom; } \
                     > objects/.$number.tmp
                 sha256sum < objects/.$number.tmp > objects/$number.d
                 mv objects/.$number.tmp objects/$number.o
                 if test -e objects/$((number - 8)).o; then
                     cat objects/$((number - 8)).o objects/$number.o > objects/lib$1.a
                     ln -f objects/lib$1.a objects/link$1
                 fi
                 if test $((number % 5)) = 0; then rm objects/$number.o objects/$number.d; fi
             done
         }
         for turn in 1 2; do
             for worker in $(seq 8); do build $worker & done
             wait
             for object in objects/*.o; do
                 sha256sum < $object | cmp - ${object%.o}.d
             done
         done",
    );
    volume.check_volume(mount);
}

/// The least size of the large tree.
const FULL_FILES: usize = 50_000;
const FULL_BYTES: u64 = 2 << 30;

/// 50,000 files and 2 GiB of this machine's own folders. This takes minutes, so it runs only with
/// `BUTTRESS_FULL=1`.
#[test]
fn full_size() {
    if std::env::var_os("BUTTRESS_FULL").is_none() || !ready() {
        return;
    }
    let home = std::env::var("RUSTUP_HOME").map_or_else(
        |_| Path::new(&std::env::var("HOME").unwrap_or_default()).join(".rustup"),
        PathBuf::from,
    );
    let folders = ["/usr/share".into(), home, "/usr/lib".into()];
    let volume = Volume::new("16G");
    let mount = volume.mount();
    let (mut files, mut bytes) = (0, 0);
    for folder in folders.iter().filter(|folder| folder.exists()) {
        let name = folder.file_name().and_then(|name| name.to_str()).expect("ASCII");
        mount.shell(&format!("cp -a '{}' ./'{name}'", folder.display()));
        let source = Manifest::of_folder(folder);
        let mut copy = Manifest::of_folder(&mount.path().join(name));
        files += copy.entries.len();
        bytes += copy.bytes();
        // Hard links to names outside of the folder are not copied.
        for (path, entry) in &mut copy.entries {
            let there = source.entries.get(path).map_or(0, |entry| entry.nlink);
            entry.nlink = there;
        }
        source.assert_same(name, &copy, "its copy", Depth::Copy);
        if files >= FULL_FILES && bytes >= FULL_BYTES {
            break;
        }
    }
    assert!(files >= FULL_FILES && bytes >= FULL_BYTES, "only {files} files, {bytes} bytes here");
    mount.shell("tar --format=posix -cf - share | (mkdir again; tar -xpf - -C again); rsync -a --modify-window=-1 --checksum share/ again/share");
    let before = Manifest::of_folder(&mount.path().join("share"));
    let again = Manifest::of_folder(&mount.path().join("again/share"));
    before.assert_same("share", &again, "its second copy", Depth::Copy);
    volume.check_volume(mount);
    if has_linux_btrfs() {
        let mount = volume.images.mount("");
        mount.shell("cp -a share third; rm -r again");
        let scrub = mount.btrfs("scrub start -B -R");
        for line in scrub.lines().filter(|line| line.contains("errors:")) {
            assert!(line.trim_end().ends_with(" 0"), "scrub: {scrub}");
        }
        mount.btrfs("balance start --full-balance");
        let linux = Manifest::of_folder(mount.path());
        mount.unmount();
        volume.images.check();
        let ours = manifest(volume.images.paths());
        linux.assert_same("Linux after a balance", &ours, "the library", Depth::Volume);
    }
}

/// A volume is filled, emptied and filled again. Writers get errors, and removing, umount and mount
/// work.
///
/// Data that the kernel cached before it knew that the volume is full is lost, and the writer gets
/// an error. So the content is compared from the next mount on.
#[test]
fn a_full_volume() {
    if !ready() {
        return;
    }
    let volume = Volume::new("400M");
    let mount = volume.mount();
    mount.shell(
        "fill() {
             if head -c 2G /dev/urandom > $1 2> $1.said; then echo no end >&2; exit 1; fi
             grep -q 'No space left' $1.said
         }
         mkdir small; for number in $(seq 300); do head -c $((number * 37)) /dev/zero > small/$number; done
         fill first
         rm small/*5",
    );
    mount.unmount();
    volume.check_volume(volume.mount());
    let mount = volume.mount();
    mount.shell(
        "rm first
         head -c 250M /dev/urandom > second; sync second
         sha256sum second > second.sum
         mkdir full; number=0
         while echo $number > full/$number && head -c 30000 /dev/zero >> full/$number; do
             number=$((number + 1))
         done 2> said
         grep -q 'No space left' said
         sha256sum --check --quiet second.sum
         rm -r small; rm full/*7",
    );
    mount.unmount();
    let mount = volume.mount();
    mount.shell("sha256sum --check --quiet second.sum; truncate -s 1000 second");
    volume.check_volume(mount);
}

/// A second writer is refused, and the message has the process number of the first writer.
#[test]
fn one_writer() {
    if !ready() {
        return;
    }
    let volume = Volume::new("512M");
    let mount = volume.mount();
    let second = crate::open::try_device(volume.images.path()).expect_err("two writers");
    assert!(second.contains("process"), "{second} does not name the process");
    mount.unmount();
    crate::open::try_device(volume.images.path()).expect("the first is gone");
}
