//! Runs the commands on pages of the guide, as if by copy and paste.

use std::process::Command;

use crate::Bench;
use crate::live::has;
use crate::unmounting::{can_mount, script, succeeded};

/// The first page.
const PAGE: &str = include_str!("../../../../docs/guide/first-volume.md");

/// Gives the script its own `/srv`, `/mnt` and state, and an `/etc` in which changes are hidden
/// from other programs.
const APART: &str = r#"
mkdir srv mnt lib over
mount --bind srv /srv
mount --bind mnt /mnt
mount --bind lib /var/lib
mount -t tmpfs over over
mkdir over/new over/work
mount -t overlay etc -o "lowerdir=/etc,upperdir=$PWD/over/new,workdir=$PWD/over/work" /etc
PATH="$PWD/bin:$PATH"
"#;

/// The commands of a page: its blocks of `sh`, in their order.
fn commands(page: &str) -> String {
    let blocks = page.split("```sh\n").skip(1);
    blocks.filter_map(|rest| rest.split("```").next()).collect()
}

/// A bench with a folder for the search path: the program is in it, also by the name of `btrfs`.
fn with_the_program() -> Bench {
    let bench = crate::bench();
    let bin = bench.path("bin");
    std::fs::create_dir(&bin).expect("a folder");
    for name in ["buttress", "btrfs"] {
        let program = bin.join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), program).expect("a link");
    }
    bench
}

/// Unmounts the volume that a block has mounted at `/mnt`.
const LEAVE: &str = "if findmnt -n -t fuse.buttress /mnt; then buttress umount /mnt; fi\n";

/// A page with other places, and with [`LEAVE`] after each block, so that each block mounts its own
/// volume at `/mnt`.
fn with_places(page: &str, places: &[(&str, &str)]) -> String {
    let page = places.iter().fold(page.to_owned(), |page, (from, to)| page.replace(from, to));
    let (first, blocks) = page.split_once("```sh\n").expect("a block");
    first.to_owned() + "```sh\n" + &blocks.replace("\n```\n", &format!("\n{LEAVE}```\n"))
}

/// Pastes the blocks of a page into a folder that `before` has prepared. Returns the output.
#[track_caller]
fn pasted(page: &str, before: &str) -> String {
    let bench = with_the_program();
    let text = format!("{APART}mkdir at\ncd at\n{before}\nset -x\n{}", commands(page));
    succeeded(&script(&bench, &text))
}

/// Other programs can use mounts and images as the page says.
#[test]
fn other_programs_work_as_the_guide_says() {
    let needed = ["sfdisk", "busybox", "systemd-nspawn", "systemd-repart", "qemu-img", "snapper"];
    if !can_mount() || !has(&needed, Some("/dev/fuse")) {
        return;
    }
    let said = pasted(include_str!("../../../../docs/guide/others.md"), "");
    for words in ["os-release", "Images are identical", "c....", "no error found"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
}

/// The commands of the pages about images and snapshots work if the files and mounts exist that the
/// pages assume.
#[test]
fn pages_about_images_and_snapshots_work() {
    if !can_mount() || !has(&["sfdisk", "tar", "gzip"], Some("/dev/fuse")) {
        return;
    }
    let before = "mkdir -p src build/@/usr build/@/var/db
        echo 'fn main() {}' >src/main.rs
        echo root >build/@/usr/name
        tar -czf layer.tar.gz src
        truncate --size 1G machine.img
        printf 'label: gpt\\ntype=uefi, size=64M\\ntype=linux, name=root\\n' |
            sfdisk --quiet machine.img 2>/dev/null
        mkdir -p etc
        echo '/dev/vda2 / btrfs' >etc/fstab
        buttress mkfs 'machine.img#2' --rootdir . --quiet >/dev/null";
    let said = pasted(include_str!("../../../../docs/guide/images.md"), before);
    for words in ["fn main", "no error found"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    let before = "buttress mkfs disk.img --size 1G >/dev/null
        buttress mkfs backup.img --size 1G >/dev/null
        buttress mkfs other.img --size 1G >/dev/null
        mkdir /srv/backup
        buttress mount disk.img /mnt
        buttress mount other.img /srv/backup";
    let after = "buttress umount /srv/backup\nbuttress check disk.img\nbuttress check backup.img\n";
    let page = include_str!("../../../../docs/guide/snapshots.md");
    let said = pasted(&format!("{page}\n```sh\n{after}```\n"), before);
    assert!(said.contains("@home-monday"), "{said}");
}

/// The page about stores works, with a folder in the place of a bucket.
#[test]
fn the_page_about_stores_works_with_a_folder() {
    if !can_mount() {
        return;
    }
    let page = include_str!("../../../../docs/guide/remote.md");
    let places = [
        ("s3://bucket", "file:///srv/bucket"),
        ("file:///tmp/vol", "file:///srv/vol"),
        ("/var/cache/home", "/srv/cache"),
        ("\nexport AWS", "\n: AWS"),
        // The store already has every write of the local log, so there is nothing to salvage.
        ("\nbuttress remote salvage", "\n: buttress remote salvage"),
    ];
    let before = "mkdir src\necho 'fn main() {}' >src/main.rs";
    let said = pasted(&with_places(page, &places), before);
    for words in ["main.rs", "-> 2.00TiB", "again shares the objects"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
}

/// The page about rescue works on a volume that has no damage and has a deleted file.
#[test]
fn the_page_about_rescue_works() {
    if !can_mount() {
        return;
    }
    let page = include_str!("../../../../docs/guide/rescue.md");
    let places = [
        ("/safe", "/srv/safe"),
        // The command lists the writes that it would make, and fails because it has not made them.
        ("clear-space-cache v2 disk.img", "clear-space-cache v2 disk.img || true"),
        // Without a repair there is no journal.
        ("buttress check --undo", "test ! -e undo.bin || buttress check --undo"),
    ];
    let before = "mkdir -p /srv/safe tree/ada/documents
        echo thesis >tree/ada/thesis
        echo draft >tree/ada/documents/draft
        buttress mkfs disk.img --size 1G >/dev/null
        buttress subvolume create disk.img:/home
        buttress cp -r tree/ada disk.img:/home/
        buttress mkfs a.img b.img --size 512M --data raid1 --metadata raid1 >/dev/null
        buttress rm disk.img:/home/ada/thesis";
    let said = pasted(&with_places(page, &places), before);
    for words in ["5 whole", "nothing was written", "written anew", "thesis"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
}

/// The page about conversions works on an image of ext4: converted, used by Linux, rolled back.
#[test]
fn the_page_about_conversions_works() {
    if !can_mount() || !has(&["mkfs.ext4", "e2fsck"], None) {
        return;
    }
    let page = include_str!("../../../../docs/guide/convert.md");
    let places = [
        ("\nmount /dev/sdb1", "\nmount -o loop /dev/sdb1"),
        ("/dev/sdb1", "sdb1"),
        (" /old", " /srv/old"),
        ("e2fsck -f", "e2fsck -fy"),
    ];
    // On the page, the saved image is deleted after the rollback. So the test converts the image
    // again before that command.
    let page = with_places(page, &places);
    let last = "buttress subvolume delete /mnt/ext2_saved";
    let again = format!("buttress convert sdb1\nmount -o loop sdb1 /mnt\n{last}");
    let page = page.replace(last, &again.replace("buttress sub", "btrfs sub"));
    let before = "truncate -s 512M sdb1
        mkfs.ext4 -q -d /usr/share/common-licenses sdb1
        mkdir /srv/old
        mount -o loop sdb1 /mnt";
    let said = pasted(&page, before);
    assert!(said.contains("ext2_saved"), "{said}");
}

/// A new user pastes each block of the first page, and each command works. At the end nothing is
/// mounted and `/etc/fstab` is as it was.
#[test]
fn the_first_page_works_when_it_is_pasted() {
    if !can_mount() {
        return;
    }
    let bench = with_the_program();
    let pasted = commands(PAGE);
    let before = std::fs::read_to_string("/etc/fstab").unwrap_or_default();
    let text = format!("{APART}set -x\n{pasted}\nset +x\ncat /etc/fstab\nls -A /srv /mnt");
    let said = succeeded(&script(&bench, &text));
    for words in ["written on Tuesday", "Corrected:", "Uncorrectable:  0", "numbers: OK"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    let left = format!("{before}/mnt:\n\n/srv:\n");
    assert!(said.ends_with(&left), "{said}");
    let mounts = Command::new("findmnt").args(["-t", "fuse.buttress", "-n"]).output();
    let mounts = mounts.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    assert!(!mounts.unwrap_or_default().contains("/mnt/first"), "it was private");
}
