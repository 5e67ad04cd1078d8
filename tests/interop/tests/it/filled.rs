//! Volumes that `mkfs` fills: with subvolumes and flags, from archives, cut to their size. Linux
//! sees the content of the source.

use std::path::Path;

use buttress_interop::linux::{Images, has_linux_btrfs, has_program, run};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::program::buttress;
use buttress_interop::sample::{Folder, Scale, fill};

use crate::open::manifest;

/// A folder with the sample tree, and with objects that only root can make.
fn source(images: &Images) -> std::path::PathBuf {
    let folder = images.scratch().join("source");
    std::fs::create_dir(&folder).expect("a folder");
    let scale = Scale { dirs: 6, files: 10, big_bytes: 3 << 20, ..Scale::default() };
    fill(&Folder::new(&folder), &scale);
    // GNU tar leaves sockets out.
    std::fs::remove_file(folder.join("kinds/socket")).expect("a socket");
    // The file is too long for programs that do not skip holes.
    std::fs::remove_file(folder.join("holes/a tebibyte")).expect("a file");
    let script = format!(
        "set -eu; cd '{}'; mknod null c 1 3; mknod whiteout c 0 0; mknod disk b 259 70000; \
         mkfifo pipe; mkdir -p db/sub plain; echo row > db/row; echo more > db/sub/more; \
         touch plain/.wh.gone plain/sum; ln db/row db/again; chown 1234:70000 db/row; \
         chmod 4755 plain/sum; setfattr -n trusted.test -v value plain; \
         truncate -s 5G plain/sparse; \
         printf end | dd of=plain/sparse bs=1 seek=3G conv=notrunc status=none; \
         touch -d @1700000000.123456789 plain/sum; touch -d @-5.5 plain",
        folder.display()
    );
    run("bash", ["-c", &script]);
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().expect("ASCII")
}

/// Makes a new volume with these arguments.
fn made(images: &Images, words: &[&str]) {
    drop(std::fs::remove_file(images.path()));
    buttress(["mkfs", text(images.path())].iter().chain(words).copied());
    images.check();
}

/// Compares the volume with the folder, as this library sees it and as Linux does.
fn same_as(images: &Images, folder: &Path) {
    let expected = Manifest::of_folder(folder);
    let here = manifest(images.paths());
    expected.assert_same("the source", &here, "here", Depth::Copy);
    let mount = images.mount("ro");
    let linux = Manifest::of_folder(mount.path());
    mount.unmount();
    linux.assert_same("Linux", &here, "here", Depth::Volume);
}

/// For each form of archive that GNU tar writes, `mkfs` gives the files that unpacking gives, from
/// a file and from a pipe. Two runs give the same bytes.
#[test]
fn archives_become_what_they_hold() {
    if !has_linux_btrfs() || !has_program("tar") {
        return;
    }
    let images = Images::new(1, 0);
    let source = source(&images);
    let archive = images.scratch().join("archive.tar");
    let forms = [
        "--format=posix --sparse --sparse-version=1.0",
        "--format=posix --sparse --sparse-version=0.0",
        "--format=posix --sparse --sort=name",
    ];
    for form in forms {
        let script = format!(
            "tar {form} --xattrs --xattrs-include='*' -C '{}' -cf '{}' .",
            source.display(),
            archive.display()
        );
        run("bash", ["-c", &script]);
        made(&images, &["--from-tar", text(&archive)]);
        same_as(&images, &source);
    }
    // This archive has no attributes of files, and has the holes in GNU's own form.
    let unpacked = images.scratch().join("unpacked");
    std::fs::create_dir(&unpacked).expect("a folder");
    let script = format!(
        "set -eu; tar --format=gnu --sparse -C '{}' -cf '{}' .; tar -C '{}' -xpf '{}'",
        source.display(),
        archive.display(),
        unpacked.display(),
        archive.display()
    );
    run("bash", ["-c", &script]);
    made(&images, &["--from-tar", text(&archive)]);
    same_as(&images, &unpacked);
    let first = images.scratch().join("first.img");
    for name in [text(images.path()), text(&first)] {
        let script = format!(
            "set -eu; rm -f '{name}'; export SOURCE_DATE_EPOCH=1700000000; \
             cat '{}' | '{}' mkfs '{name}' --size 256M --seed x --from-tar -",
            archive.display(),
            buttress_interop::program::program().display(),
        );
        run("bash", ["-c", &script]);
    }
    images.check();
    run("cmp", [images.path(), &first]);
}

/// Access control lists are as `tar --acls` unpacks them. Lists come before the first entry that
/// shows the number of a name, and after it; an entry with a list is replaced by a later one.
#[test]
fn lists_of_archives_are_as_tar_unpacks_them() {
    if !has_linux_btrfs() || !has_program("tar") || !has_program("setfacl") {
        return;
    }
    let images = Images::new(1, 0);
    let scratch = images.scratch();
    let (source, archive) = (scratch.join("lists"), scratch.join("lists.tar"));
    let unpacked = scratch.join("unpacked");
    let make = format!(
        "set -eu; mkdir '{0}' '{1}'; cd '{0}'; mkdir a-dir a-dir/below; echo one > a-file; \
         setfacl -m u:daemon:r,u:games:rwx,g:mail:r-x,u:54321:w a-file; \
         setfacl -m u:games:x,g:54321:r a-dir; setfacl -d -m u:daemon:rwx,g:mail:r,m::r-x a-dir; \
         setfacl -d -m u:games:r a-dir/below; echo mode > b-mode; chmod 640 b-mode; \
         echo again > c-again; setfacl -m u:daemon:r c-again; ln -s a-file d-link; \
         echo owned > x-owned; chown daemon:mail x-owned; echo owned > y-owned; \
         chown games y-owned; echo late > z-late; setfacl -m u:daemon:rw,g:mail:x z-late; \
         touch -d @1700000000.5 a-file a-dir; chmod u+s a-file",
        source.display(),
        unpacked.display()
    );
    run("bash", ["-c", &make]);
    // With --numeric-owner an archive has lists with names, and no number of any name.
    for form in ["--acls", "--acls --xattrs --xattrs-include='*'"] {
        // The second member of one name wins, and has another list.
        let pack = format!(
            "set -eu; cd '{0}'; tar --format=posix --sort=name {form} -cf '{1}' .; \
             cp -a c-again '{2}/keep'; setfacl -b -m g:mail:rwx c-again; \
             tar --format=posix {form} -rf '{1}' ./c-again; cp -a '{2}/keep' c-again; \
             rm -r '{2}'; mkdir '{2}'; tar -C '{2}' --acls -xpf '{1}'",
            source.display(),
            archive.display(),
            unpacked.display()
        );
        run("bash", ["-c", &pack]);
        let lists = run("bash", ["-c", &format!("getfacl -nRp '{}'", unpacked.display())]);
        assert!(lists.contains("user:1:") && lists.contains("default:user:"), "{lists}");
        made(&images, &["--from-tar", text(&archive)]);
        same_as(&images, &unpacked);
    }
}

/// Folders become subvolumes, files lose their checksums, and the image is cut; from a folder and
/// from an archive.
#[test]
fn folders_become_subvolumes() {
    if !has_linux_btrfs() || !has_program("tar") {
        return;
    }
    let images = Images::new(1, 0);
    let source = source(&images);
    let archive = images.scratch().join("archive.tar");
    std::fs::remove_file(source.join("db/again")).expect("a link");
    let arguments = ["--format=posix", "--sparse", "--xattrs", "--xattrs-include=*", "-C"];
    let arguments = arguments.into_iter().chain([text(&source), "-cf", text(&archive)]);
    run("tar", arguments.chain(["."]));
    let words = ["--subvol", "ro:plain", "-u", "db/sub", "-u", "default:db", "--shrink"];
    let words = [&words[..], &["--inode-flags", "nodatacow:db", "--compress", "zstd"]].concat();
    let words = [&words[..], &["--inode-flags", "nodatasum:big"]].concat();
    for from in [["--rootdir", text(&source)], ["--from-tar", text(&archive)]] {
        made(&images, &[&words[..], &from].concat());
        let mount = images.mount("ro,subvolid=5");
        let expected = Manifest::of_folder(&source);
        let linux = Manifest::of_folder(mount.path());
        expected.assert_same("the source", &linux, "Linux", Depth::Copy);
        let listed = mount.btrfs("subvolume list");
        for path in ["plain", "db", "db/sub"] {
            let has = listed.lines().any(|line| line.ends_with(&format!(" path {path}")));
            assert!(has, "{path} in {listed}");
        }
        assert!(mount.btrfs("subvolume get-default").contains("path db"));
        let read_only = mount.shell("for at in plain db; do btrfs property get $at ro; done");
        assert_eq!(read_only, "ro=true\nro=false\n");
        let flags = mount.shell("lsattr -d db db/row db/sub/more plain/sum | cut -d' ' -f1");
        let has: Vec<bool> = flags.lines().map(|line| line.contains('C')).collect();
        // A subvolume has the flags that are given to a folder above it.
        assert_eq!(has, [true, true, true, false], "{flags}");
        mount.unmount();
        let dump = run("btrfs", ["inspect-internal", "dump-tree", "-t5", text(images.path())]);
        assert!(dump.contains("flags 0x1(NODATASUM)"), "files without checksums alone");
    }
    let refused = |words: &[&str], why: &str| {
        let program = buttress_interop::program::program();
        let mut command = std::process::Command::new(program);
        let image = images.scratch().join("none.img");
        let output = command.args(["mkfs", text(&image), "--rootdir", text(&source)]).args(words);
        let output = output.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{words:?}: {said}");
        assert!(!image.exists(), "nothing is left of it");
    };
    refused(&["-u", "nowhere"], "nowhere");
    refused(&["--inode-flags", "nodatasum:nowhere"], "nowhere");
    refused(&["-u", "default:db", "-u", "default:plain"], "default");
}

/// A cut image is at most a little larger than an image that btrfs-progs cuts.
#[test]
fn a_cut_image_is_as_small_as_that_of_btrfs_progs() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 0);
    let source = source(&images);
    // btrfs-progs 6.2 would write the hole of this file as zeros.
    std::fs::remove_file(source.join("plain/sparse")).expect("a file");
    let theirs = images.scratch().join("theirs.img");
    std::fs::File::create(&theirs).expect("a file");
    let words = ["-q", "--shrink", "--rootdir", text(&source), text(&theirs)];
    run("mkfs.btrfs", words);
    made(&images, &["--shrink", "--rootdir", text(&source)]);
    let len = |path: &Path| path.metadata().expect("an image").len();
    let (ours, theirs) = (len(images.path()), len(&theirs));
    assert!(ours * 100 <= theirs * 102, "{ours} bytes, and {theirs} by btrfs-progs");
    same_as(&images, &source);
    // The volume can be written, and grows again.
    let mount = images.mount("");
    mount.shell("echo more > more");
    mount.unmount();
    images.check();
}
