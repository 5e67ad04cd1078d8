//! Conversions of ext4, seen by Linux on both sides.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::checker::check;
use crate::live::{has, run};
use crate::text;

/// All properties of a tree of files: names, modes, owners, times, attributes and content.
fn seen(top: &Path) -> String {
    let script = "cd \"$0\" && find . -path ./ext2_saved -prune -o -printf                   '%p %y %m %U %G %T@ %C@ %l %n\\n' | sed 's/^\\(.* d .*\\) [0-9]*$/\\1/' | sort &&                   find . -path ./ext2_saved -prune -o -type f -print0 | sort -z | xargs -0 md5sum &&                   getfattr -R -h -d -m '^(user|trusted|security|system)' . 2>/dev/null | sort &&                   find . -path ./ext2_saved -prune -o ! -type l -print0 | sort -z | xargs -0 getfacl -p";
    run("bash", &["-c", script, text(top)])
}

/// Linux fills an ext4, which is converted to a volume. On the volume, Linux sees the same files,
/// and writes. The conversion back restores the ext4.
#[test]
fn linux_sees_the_same_before_and_after() {
    let needed =
        ["mkfs.ext4", "e2fsck", "mount", "umount", "getfattr", "setfattr", "setfacl", "btrfs"];
    if !has(&needed, Some("/dev/loop-control")) {
        return;
    }
    let bench = crate::bench();
    let (image, mnt) = (bench.path("image"), bench.path("mnt"));
    fs::create_dir(&mnt).expect("made");
    fs::File::create(&image).and_then(|file| file.set_len(256 << 20)).expect("made");
    run("mkfs.ext4", &["-q", "-F", "-b", "4096", text(&image)]);
    let mounted = |kind: &str, options: &str, work: &dyn Fn(&Path) -> String| {
        run("mount", &["-t", kind, "-o", options, text(&image), text(&mnt)]);
        let said = work(&mnt);
        run("umount", &[text(&mnt)]);
        said
    };
    let before = mounted("ext4", "loop", &|top| {
        let script = "cd \"$0\" && mkdir -p a/b && for i in $(seq 500); do echo $i >a/b/name$i; done &&                       head -c 9000001 /dev/urandom >big && ln big a/hard && ln -s ../big a/soft &&                       mknod null c 1 3 && mknod disk b 259 300 && mkfifo fifo &&                       dd if=big of=sparse bs=4k count=3 seek=99 status=none &&                       fallocate -l 3M prealloc && echo x | dd of=prealloc conv=notrunc status=none &&                       setfattr -n user.long -v $(printf '%01500d' 1) a/b/name3 &&                       setfattr -n trusted.t -v 1 a && setfacl -m u:1000:rwx,g:7:r a/b/name4 &&                       setfacl -d -m u:1000:rwx a/b && chown 70000:100000 a/b/name5 &&                       chmod 6755 a/b/name5 && touch -d '1950-01-01 01:02:03.5' a/b/name6 &&                       touch -d '2200-01-01' a/b/name7";
        run("bash", &["-c", script, text(top)]);
        seen(top)
    });
    bench.fails(&["convert", "--rollback", "image"], 2, &["image", "ext4"]);
    bench.ok(&["convert", "image", "--label", "new", "--memory", "16M"]);
    check(&image);
    let after = mounted("btrfs", "loop", &|top| {
        let said = seen(top);
        let saved = fs::metadata(top.join("ext2_saved/image")).expect("there");
        assert_eq!((saved.len(), saved.mode() & 0o7777), (256 << 20, 0o400));
        run("bash", &["-c", "cd \"$0\" && rm -r a && echo y >>big && cp big more", text(top)]);
        said
    });
    assert!(before == after, "{before}\n{after}");
    check(&image);
    bench.ok(&["convert", "--rollback", "image", "--memory", "16M"]);
    let checked = Command::new("e2fsck").arg("-fn").arg(&image).output().expect("it starts");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let back = mounted("ext4", "loop,ro", &|top| seen(top));
    assert!(before == back, "{before}\n{back}");

    // `btrfs-convert` of btrfs-progs rolls our conversion back, and our program rolls back the
    // conversion by `btrfs-convert`.
    if has(&["btrfs-convert"], None) {
        bench.ok(&["convert", "image"]);
        run("btrfs-convert", &["-r", text(&image)]);
        let back = mounted("ext4", "loop,ro", &|top| seen(top));
        assert!(before == back, "{before}\n{back}");
        run("btrfs-convert", &[text(&image)]);
        bench.ok(&["convert", "--rollback", "image"]);
        let back = mounted("ext4", "loop,ro", &|top| seen(top));
        assert!(before == back, "{before}\n{back}");
    }
}
