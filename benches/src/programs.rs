//! `buttress-bench programs`: commands of this program beside those of btrfs-progs and compsize.
//!
//! # Place
//!
//! Each case is work that both programs do on equal images, or on one image: ours reads the image,
//! and theirs a mount of Linux where it needs one. Mounting does not count. Subjects take turns,
//! each begins with empty caches, and medians are shown.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::mount::drop_caches;
use crate::report::median;
use crate::setup::{PROGRAM, sh};
use crate::target;

/// What to measure.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// A folder for the images.
    pub(crate) dir: PathBuf,
    pub(crate) runs: usize,
    /// Files of the tree, of 4 KiB on average.
    pub(crate) files: usize,
    /// Only cases with one of these words in their names.
    pub(crate) only: Vec<String>,
}

/// Work that both programs do. Words in capitals stand for paths: `TREE`, `IMAGE`, `MOUNT`, `COPY`,
/// which is a copy of the image that the case may change, and `OUT`, which is new. For `mkfs.btrfs`
/// `OUT` is an empty file, and for `restore` an empty folder.
struct Case {
    name: &'static str,
    ours: &'static [&'static str],
    theirs: &'static [&'static str],
}

const CASES: [Case; 9] = [
    Case {
        name: "make an image of a tree",
        ours: &["mkfs", "--rootdir", "TREE", "OUT"],
        theirs: &["mkfs.btrfs", "-q", "--rootdir", "TREE", "OUT"],
    },
    Case { name: "check", ours: &["check", "IMAGE"], theirs: &["btrfs", "check", "IMAGE"] },
    Case {
        name: "check all data",
        ours: &["check", "--check-data-csum", "IMAGE"],
        theirs: &["btrfs", "check", "--check-data-csum", "IMAGE"],
    },
    Case {
        name: "build the extent tree",
        ours: &["check", "--repair", "--init-extent-tree", "COPY"],
        theirs: &["btrfs", "check", "--init-extent-tree", "--force", "COPY"],
    },
    Case {
        name: "restore",
        ours: &["restore", "IMAGE", "OUT"],
        theirs: &["btrfs", "restore", "IMAGE", "OUT"],
    },
    Case {
        name: "print all items",
        ours: &["dump", "IMAGE"],
        theirs: &["btrfs", "inspect-internal", "dump-tree", "IMAGE"],
    },
    Case {
        name: "sum up what is shared",
        ours: &["du", "-s", "IMAGE:/"],
        theirs: &["btrfs", "filesystem", "du", "-s", "MOUNT"],
    },
    Case {
        name: "tell the compression",
        ours: &["compsize", "IMAGE:/"],
        theirs: &["compsize", "MOUNT"],
    },
    Case {
        name: "send a snapshot",
        ours: &["send", "-f", "OUT", "IMAGE:/snapshot"],
        theirs: &["btrfs", "send", "-q", "-f", "OUT", "MOUNT/snapshot"],
    },
];

/// The paths of one run of the experiment. They are removed at its end.
struct Places {
    folder: PathBuf,
    device: Option<String>,
}

impl Places {
    fn of(&self, word: &str) -> String {
        let at = |name: &str| self.folder.join(name).to_string_lossy().into_owned();
        let named = [
            ("TREE", "tree"),
            ("IMAGE", "image"),
            ("COPY", "copy"),
            ("MOUNT", "mount"),
            ("OUT", "out"),
        ];
        let found = named.iter().find_map(|(word_of, name)| {
            word.strip_prefix(word_of).map(|rest| format!("{}{rest}", at(name)))
        });
        found.unwrap_or_else(|| word.to_owned())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes the tree, and an image with the tree, a snapshot, and files that changed after it.
    fn fill(&self, files: usize) -> Result<(), String> {
        let show = |error: std::io::Error| error.to_string();
        let tree = self.path("tree");
        for number in 0..files {
            let folder = tree.join(format!("d{}", number / 200));
            if number % 200 == 0 {
                fs::create_dir_all(&folder).map_err(show)?;
            }
            let byte = (number % 251) as u8;
            let content: Vec<u8> = (0..number % 8192).map(|at| byte ^ (at / 64) as u8).collect();
            fs::write(folder.join(format!("file{number}")), content).map_err(show)?;
        }
        let image = self.of("IMAGE");
        let own = own_program()?;
        sh(&own, &[PROGRAM, "mkfs", "--size", "4G", "--rootdir", &self.of("TREE"), &image])?;
        let (top, made) = (format!("{image}:/"), format!("{image}:/snapshot"));
        sh(&own, &[PROGRAM, "subvolume", "snapshot", "-r", &top, &made])?;
        sh(&own, &[PROGRAM, "cp", "-r", &self.of("TREE/d0"), &format!("{image}:/again")])?;
        fs::create_dir_all(self.path("mount")).map_err(show)
    }

    /// Mounts the image in Linux, if a case needs it.
    fn mount(&mut self) -> Result<(), String> {
        let device = sh("losetup", &["--find", "--show", "--read-only", &self.of("IMAGE")])?;
        if let Err(error) = sh("mount", &["-o", "ro", &device, &self.of("MOUNT")]) {
            sh("losetup", &["--detach", &device])?;
            return Err(error);
        }
        self.device = Some(device);
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), String> {
        let Some(device) = &self.device else { return Ok(()) };
        sh("umount", &[&self.of("MOUNT")])?;
        sh("losetup", &["--detach", device])?;
        self.device = None;
        Ok(())
    }

    fn remove_out(&self) {
        let out = self.path("out");
        // One of the two fails, and both if there is nothing.
        let _ = fs::remove_dir_all(&out);
        let _ = fs::remove_file(&out);
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let _ = self.unmount();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn own_program() -> Result<String, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(own.to_string_lossy().into_owned())
}

/// Seconds that a command takes with empty caches. Its output is not read.
fn seconds(places: &mut Places, words: &[&str], is_ours: bool) -> Result<f64, String> {
    places.remove_out();
    if words.contains(&"COPY") {
        let copied = fs::copy(places.path("image"), places.path("copy"));
        copied.map_err(|error| error.to_string())?;
    }
    if words.contains(&"OUT") && words.contains(&"restore") {
        fs::create_dir(places.path("out")).map_err(|error| error.to_string())?;
    }
    if words.contains(&"mkfs.btrfs") {
        fs::write(places.path("out"), "").map_err(|error| error.to_string())?;
    }
    let needs_mount = words.iter().any(|word| word.starts_with("MOUNT"));
    if needs_mount {
        places.mount()?;
    }
    drop_caches()?;
    let line: Vec<_> = words.iter().map(|word| places.of(word)).collect();
    let mut command = match is_ours {
        true => {
            let mut command = Command::new(own_program()?);
            command.arg(PROGRAM).args(&line);
            command
        }
        false => {
            let mut command = Command::new(&line[0]);
            command.args(&line[1..]);
            command
        }
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let begun = Instant::now();
    let output = command.output().map_err(|error| format!("{}: {error}", line[0]))?;
    let took = begun.elapsed().as_secs_f64();
    places.unmount()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}", line.join(" "), why.trim()));
    }
    Ok(took)
}

/// Runs all cases, and returns the figures as JSON and as text.
pub(crate) fn run(plan: &Plan, say: &mut dyn FnMut(&str)) -> Result<(Value, String), String> {
    if !target::has_loops() {
        return Err("this needs root and loop devices".to_owned());
    }
    let is_wanted = |case: &&Case| {
        plan.only.is_empty() || plan.only.iter().any(|word| case.name.contains(word.as_str()))
    };
    let cases: Vec<_> = CASES.iter().filter(is_wanted).collect();
    if cases.is_empty() {
        return Err("there is no case of such a name".to_owned());
    }
    let folder = plan.dir.join(format!("buttress-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut places = Places { folder, device: None };
    say("making the tree and the image");
    places.fill(plan.files)?;
    let mut rows = Vec::new();
    for case in cases {
        let mut found = [Vec::new(), Vec::new()];
        for run in 0..plan.runs {
            say(&format!("{}: run {} of {}", case.name, run + 1, plan.runs));
            found[0].push(seconds(&mut places, case.ours, true)?);
            // A peer that fails has no figure. btrfs-progs 6.2 may crash while it builds a tree.
            match seconds(&mut places, case.theirs, false) {
                Ok(seconds) => found[1].push(seconds),
                Err(error) => say(&error),
            }
        }
        rows.push((case, found));
    }
    Ok((as_json(&rows), as_text(&rows, plan)))
}

type Row<'c> = (&'c Case, [Vec<f64>; 2]);

/// The program that a case is compared with.
fn peer(case: &Case) -> &'static str {
    if case.theirs[0] == "compsize" { "compsize" } else { "btrfs-progs" }
}

fn as_json(rows: &[Row<'_>]) -> Value {
    let figure = |(case, [ours, theirs]): &Row<'_>| {
        let ratio = median(ours) / median(theirs);
        [
            json!({
                "what": case.name, "unit": "s", "subject": "buttress", "median": median(ours),
                "values": ours, "times_peer": ratio,
            }),
            json!({
                "what": case.name, "unit": "s", "subject": peer(case), "median": median(theirs),
                "values": theirs,
            }),
        ]
    };
    Value::Array(rows.iter().flat_map(figure).collect())
}

fn as_text(rows: &[Row<'_>], plan: &Plan) -> String {
    let mut lines = vec![format!(
        "{} files, seconds, medians of {}\n{:<26}{:>10}{:>10}{:>8}",
        plan.files, plan.runs, "work", "buttress", "peer", "ratio"
    )];
    for (case, [ours, theirs]) in rows {
        let (ours, theirs) = (median(ours), median(theirs));
        let (name, peer) = (case.name, peer(case));
        let beside = match theirs.is_nan() {
            true => format!("{:>10}{:>8}", "failed", ""),
            false => format!("{theirs:>10.3}{:>8.2}", ours / theirs),
        };
        lines.push(format!("{name:<26}{ours:>10.3}{beside}  {peer}"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn words_in_capitals_are_places() {
        let places = Places { folder: Path::new("/none").to_owned(), device: None };
        assert_eq!(places.of("MOUNT/snapshot"), "/none/mount/snapshot");
        assert_eq!(places.of("IMAGE:/"), "/none/image:/");
        assert_eq!(places.of("--rootdir"), "--rootdir");
    }
}
