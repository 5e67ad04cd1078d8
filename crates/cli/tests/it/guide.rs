//! Runs the commands on the first page of the guide, as if by copy and paste.

use std::process::Command;

use crate::unmounting::{can_mount, script, succeeded};

/// The page.
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

/// A new user pastes each block of the first page, and each command works. At the end nothing is
/// mounted and `/etc/fstab` is as it was.
#[test]
fn the_first_page_works_when_it_is_pasted() {
    if !can_mount() {
        return;
    }
    let bench = crate::bench();
    let bin = bench.path("bin");
    std::fs::create_dir(&bin).expect("a folder");
    let program = bin.join("buttress");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), program).expect("a link");
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
