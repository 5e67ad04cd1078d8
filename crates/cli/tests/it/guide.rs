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
    let needed = ["sfdisk", "busybox", "systemd-nspawn", "qemu-img", "snapper"];
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
