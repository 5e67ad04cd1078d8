//! The hint that io_uring would make a mount faster, for output that no person reads.

use std::fs;
use std::path::Path;

use crate::bench;
use crate::unmounting::{can_mount, script, succeeded};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The journal gets the hint once, however many servers start. Other files get none.
#[test]
fn the_journal_is_told_once() {
    if !can_mount() || !Path::new(SWITCH).exists() {
        return;
    }
    let bench = bench();
    bench.volume("image", "128M");
    fs::create_dir(bench.path("mnt")).expect("a folder");
    // In the namespace of the script, the switch is off.
    succeeded(&script(
        &bench,
        &format!(
            "echo N >off
            mount --bind off {SWITCH}
            round() {{ mount -t buttress \"$PWD/image\" \"$PWD/mnt\" 2>>$1; umount \"$PWD/mnt\"; }}
            round script
            touch journal
            export JOURNAL_STREAM=$(stat -c %d:%i journal)
            round journal
            round journal
            round script"
        ),
    ));
    let said = |name| fs::read_to_string(bench.path(name)).expect("it was made");
    assert_eq!(said("script"), "");
    let journal = said("journal");
    assert_eq!(journal.matches("echo Y > ").count(), 1, "{journal}");
    assert_eq!(journal.lines().count(), 1, "{journal}");
}
