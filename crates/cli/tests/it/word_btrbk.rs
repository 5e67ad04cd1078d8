//! btrbk with the program as `btrfs` on mounts of ours, beside btrbk with btrfs-progs on mounts of
//! Linux.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::checker::check;
use crate::live::{Mounted, has, run};
use crate::text;
use crate::words::program;

/// A line of btrbk and its replacement. btrbk accepts only the type `btrfs`, but FUSE mounts have
/// types such as `fuse.buttress`.
const OF_BTRBK: (&str, &str) = (
    "    my %line = %+;\n",
    "    my %line = %+; $line{fs_type} =~ s{^fuse(blk)?[.]buttress$}{btrfs};\n",
);

/// Runs a script of Perl at another time, so that days pass in a test and names are the same on
/// both sides.
const AT: &str = "BEGIN { my $now = $ENV{NOW}; *CORE::GLOBAL::time = sub () { $now } }
$0 = shift; do $0; die $@ if $@;";

/// Hours since the first run, for each run of btrbk. Old snapshots and backups go by day and week.
const RUNS: [u64; 9] = [0, 5, 24, 47, 49, 96, 240, 241, 720];

/// A Sunday at midnight.
const BEGIN: u64 = 1_772_323_200;

/// Snapshots and backups are kept by number of days and weeks.
const SETTINGS: &str = "timestamp_format long-iso
snapshot_preserve_min latest
snapshot_preserve 2d
target_preserve_min latest
target_preserve 3d 2w
snapshot_dir snaps
";

/// A volume of data and a volume of backups.
struct Side<'a> {
    source: &'a Path,
    target: &'a Path,
}

impl Side<'_> {
    /// Changes the data before a run: new and changed files, renames, links, modes, removals.
    fn change(&self, round: u8) {
        let data = self.source.join("data");
        let file = |name: &str| File::options().write(true).open(data.join(name)).expect("a file");
        fs::write(data.join(format!("file{round}")), vec![round; 300_000]).expect("room");
        match round {
            0 => {
                fs::create_dir_all(data.join("folder/below")).expect("a folder");
                fs::write(data.join("folder/below/small"), "small").expect("room");
                symlink("below/small", data.join("folder/soft")).expect("a link");
            }
            1 => file("file0").write_all_at(&[9; 5000], 100_000).expect("room"),
            2 => fs::rename(data.join("folder/below"), data.join("moved")).expect("a rename"),
            3 => fs::hard_link(data.join("file1"), data.join("moved/hard")).expect("a link"),
            4 => fs::set_permissions(data.join("file2"), Permissions::from_mode(0o4750))
                .expect("a mode"),
            5 => file("file3").set_len(12_345).expect("a length"),
            6 => fs::remove_dir_all(data.join("folder")).expect("a removal"),
            7 => file("file4").set_len(1 << 20).expect("a length"),
            _ => fs::remove_file(data.join("file1")).expect("a removal"),
        }
    }

    /// What is below a folder, in the order of names: kind, mode, length, content or target.
    fn list(&self, folder: &Path, top: &Path, to: &mut Vec<String>) {
        let entries = fs::read_dir(folder).expect("it is there");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        for path in paths {
            let name = text(path.strip_prefix(top).expect("it is below")).to_owned();
            let found = fs::symlink_metadata(&path).expect("it is there");
            let mode = found.permissions().mode();
            if found.is_dir() {
                to.push(format!("{name} {mode:o}"));
                self.list(&path, top, to);
            } else if found.is_symlink() {
                to.push(format!("{name} -> {}", fs::read_link(&path).expect("a link").display()));
            } else {
                let sum = run("sha256sum", &[text(&path)]);
                let sum = sum.split(' ').next().unwrap_or_default();
                to.push(format!("{name} {mode:o} {} {sum}", found.len()));
            }
        }
    }

    /// All files of both volumes.
    fn trees(&self) -> Vec<String> {
        let mut found = Vec::new();
        for top in [self.source, self.target] {
            found.push(String::new());
            self.list(top, top, &mut found);
        }
        found
    }

    /// Runs btrbk several times. Returns what each run printed and what both volumes had then.
    fn session(&self, btrbk: &dyn Fn() -> Command, settings: &Path) -> Vec<(String, Vec<String>)> {
        let below = format!(
            "volume {}\n  subvolume data\n    target {}/backup\n",
            text(self.source),
            text(self.target)
        );
        fs::write(settings, format!("{SETTINGS}{below}")).expect("written");
        for folder in [self.source.join("snaps"), self.target.join("backup")] {
            fs::create_dir(folder).expect("a folder");
        }
        let rounds = RUNS.iter().zip(0..).map(|(hours, round)| {
            self.change(round);
            let mut btrbk = btrbk();
            btrbk.arg("-c").arg(settings).arg("run");
            btrbk.env("NOW", (BEGIN + hours * 3600).to_string());
            let output = btrbk.output().expect("it starts");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let complained = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}{complained}");
            assert!(complained.is_empty(), "{complained}");
            let said = said.replace(text(self.source), "SOURCE");
            let said = said.replace(text(self.target), "TARGET");
            (said.replace(text(settings), "SETTINGS"), self.trees())
        });
        rounds.collect()
    }
}

/// btrbk makes snapshots, sends them incrementally to another volume, and deletes old ones. On
/// mounts of ours and on mounts of Linux, it prints the same, and each run leaves the same trees.
#[test]
fn btrbk_keeps_the_same_backups_as_on_linux() {
    let needed = ["btrbk", "perl", "mkfs.btrfs", "btrfs", "mount", "umount", "losetup"];
    if !has(&needed, Some("/dev/fuse")) || !crate::live::is_root() {
        return;
    }
    let found = run("sh", &["-c", "command -v btrbk"]);
    let script = fs::read_to_string(found.trim()).expect("it is a script");
    assert!(script.contains(OF_BTRBK.0), "btrbk reads the list of mounts in another way");

    let linux = crate::bench();
    let [source, target] = ["lx", "ly"].map(|name| {
        let image = linux.path(&format!("{name}.img"));
        File::create(&image).expect("a file").set_len(300 << 20).expect("a size");
        run("mkfs.btrfs", &["-q", text(&image)]);
        let top = linux.path(name);
        fs::create_dir(&top).expect("a folder");
        run("mount", &["-o", "loop", text(&image), text(&top)]);
        top
    });
    run("btrfs", &["subvolume", "create", text(&source.join("data"))]);
    let side = Side { source: &source, target: &target };
    let btrbk = || {
        let mut command = program(&linux, Path::new("perl"));
        command.args(["-e", AT, found.trim()]);
        command
    };
    let wanted = side.session(&btrbk, &linux.path("settings"));
    for top in [&source, &target] {
        run("umount", &[text(top)]);
    }

    let (from, to) = (crate::bench(), crate::bench());
    for bench in [&from, &to] {
        bench.volume("image", "300M");
    }
    let (one, other) = (Mounted::new(&from, &[]), Mounted::sharing(&to, &from));
    let (source, target) = (from.path("mnt"), to.path("mnt"));
    let own = from.path("btrbk");
    fs::write(&own, script.replace(OF_BTRBK.0, OF_BTRBK.1)).expect("written");
    let folder = from.path("bin");
    fs::create_dir(&folder).expect("a folder");
    symlink(env!("CARGO_BIN_EXE_buttress"), folder.join("btrfs")).expect("a link");
    let path = format!("{}:{}", text(&folder), std::env::var("PATH").unwrap_or_default());
    from.ok(&["subvolume", "create", "mnt/data"]);
    let side = Side { source: &source, target: &target };
    let btrbk = || {
        let mut command = program(&from, Path::new("perl"));
        command.env("PATH", &path).args(["-e", AT, text(&own)]);
        command
    };
    let found = side.session(&btrbk, &from.path("settings"));
    one.end();
    other.end();

    for (round, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
        assert_eq!(wanted.0, found.0, "run {round}, Linux on the left");
        assert_eq!(wanted.1, found.1, "after run {round}, Linux on the left");
        // The first stream is complete, and the other streams are incremental.
        let sent = if round == 0 { "\n*** " } else { "\n>>> " };
        assert!(found.0.contains(sent), "{}", found.0);
    }
    assert!(found.iter().any(|(said, _)| said.contains("\n--- ")), "nothing was deleted");
    check(&from.path("image"));
    check(&to.path("image"));
}
