//! btrfs-progs as a checker, where it is installed.

use std::path::Path;
use std::process::Command;

use crate::text;

/// Checks an image. Without btrfs-progs, the function only prints a note to standard error.
#[track_caller]
pub(crate) fn check(image: &Path) {
    let Some(output) = btrfs(&["check", "--check-data-csum", text(image)]) else { return };
    let report = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && report.contains("no error found"), "{report}");
}

fn btrfs(args: &[&str]) -> Option<std::process::Output> {
    match Command::new("btrfs").args(args).env("TZ", "UTC").output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("btrfs-progs is not installed ({error}): not checked");
            None
        }
    }
}

/// `dump` prints the same lines as dump-tree and dump-super, except for the version in the first
/// line.
#[test]
fn dump_equals_dump_tree() {
    let bench = crate::bench();
    for (name, features) in [("a.img", ""), ("b.img", "^block-group-tree,^skinny-metadata")] {
        bench.ok(&["mkfs", name, "--size", "256M", "--label", "x", "--features", features]);
        let image = bench.path(name);
        let Some(theirs) = btrfs(&["inspect-internal", "dump-tree", text(&image)]) else { return };
        let theirs = String::from_utf8_lossy(&theirs.stdout).into_owned();
        let ours = bench.ok(&["dump", name]);
        let body = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(body(&ours), body(&theirs));

        let theirs = btrfs(&["inspect-internal", "dump-super", "-fa", text(&image)]);
        let theirs = String::from_utf8_lossy(&theirs.expect("as before").stdout).into_owned();
        let ours = bench.ok(&["dump", "--super", "--all", text(&image)]);
        // Older btrfs-progs do not know the name of every flag.
        let known = |text: &str| {
            let lines = text.trim_end().lines().filter(|line| !line.starts_with("\t\t\t"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(known(&ours), known(&theirs));
    }
}

/// Each option of `dump-tree` prints the lines of btrfs-progs.
#[test]
fn options_of_dump_tree_print_the_same() {
    let bench = crate::bench();
    let ours = bench.path("btrfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    let source = bench.path("source");
    std::fs::create_dir(&source).expect("a folder");
    for number in 0..400 {
        let name = source.join(format!("a file with number {number}"));
        std::fs::write(name, vec![b'x'; number * 9]).expect("a file");
    }
    std::fs::write(source.join("big"), vec![7; 300_000]).expect("a file");
    for (csum, nodesize) in [("crc32c", "4096"), ("xxhash", "16384"), ("sha256", "16384")] {
        let words = ["--size", "256M", "--csum", csum, "--nodesize", nodesize, "--rootdir"];
        bench.ok(&[&["mkfs", "--force", "image"], &words[..], &["source"]].concat());
        let image = bench.path("image");
        let lines = |program: &Path, options: &[&str]| {
            let mut command = Command::new(program);
            command.args(["inspect-internal", "dump-tree"]).args(options).arg(&image);
            let output = command.env("TZ", "UTC").output().expect("it starts");
            assert!(output.status.success(), "{options:?}: {output:?}");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            // Some headings of btrfs-progs end with a space.
            said.lines().skip(1).map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
        };
        if btrfs(&["--version"]).is_none() {
            return;
        }
        let fs = lines(&ours, &["-t", "5"]);
        let blocks: Vec<_> = fs.iter().filter(|line| line.contains(" free space ")).collect();
        let address = |line: &str| line.split(' ').nth(1).expect("an address").to_owned();
        let (root, leaf) = (address(blocks[0]), address(blocks[blocks.len() - 1]));
        assert!(csum != "crc32c" || blocks[0].contains("level 2"), "{}", blocks[0]);
        for options in [
            &["-e"][..],
            &["-d"],
            &["-r"],
            &["-r", "-t", "5"],
            &["-R"],
            &["-u"],
            &["-b", &root],
            &["-b", &leaf, "--block", &root],
            &["-b", &root, "--follow"],
            &["-b", &root, "--follow", "--dfs"],
            &["--bfs"],
            &["--dfs", "-t", "fs"],
            &["--noscan", "--hide-names", "-t", "5"],
            &["--csum-headers"],
            &["--csum-items"],
            &["--csum-headers", "--csum-items", "--dfs"],
        ] {
            let (own, theirs) = (lines(&ours, options), lines(Path::new("btrfs"), options));
            let other = own.iter().zip(&theirs).find(|(own, theirs)| own != theirs);
            assert_eq!(other, None, "{options:?}");
            assert_eq!(own.len(), theirs.len(), "{options:?}");
        }
        assert_ne!(lines(&ours, &["--dfs", "-b", &root, "--follow"]), fs, "{csum}");
    }
    for (words, why) in [
        (&["-b", "12345"][..], "not aligned to sectorsize 4096"),
        (&["-b", "4096"], "failed to read tree block 4096"),
        (&["-e", "-t", "5"], "cannot be used with"),
        (&["--follow"], "--block"),
    ] {
        let mut command = Command::new(&ours);
        command.args(["inspect-internal", "dump-tree"]).args(words).arg(bench.path("image"));
        let output = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(why), "{words:?}: {said}");
    }
}
