//! Tries what was made. The packages and the archive are tried in a new Debian in a folder: after
//! install, use and removal, no file is left. The image of a container runs the program, and each
//! shell reads its completions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tool::{Result, run_command};
use crate::guide::Page;

/// Commands for the parts of the package that the guide does not use. Each line must succeed.
const STEPS: &str = r#"
set -eu
cd /root
buttress --version
man -w buttress-mount >/dev/null 2>&1 || test -e /usr/share/man/man8/buttress-mount.8.gz
test -L /usr/libexec/buttress/bin/btrfs
/usr/libexec/buttress/bin/mkfs.btrfs --version
bash -c '. /usr/share/bash-completion/completions/buttress
COMP_WORDS=(buttress subv) COMP_CWORD=1
_buttress buttress subv buttress
test "${COMPREPLY[*]}" = subvolume'
buttress demo --files 200 --large 16M --size 1G
"#;

/// Builds an image of a container from the installed files, and uses the program in it. The first
/// parameter is the folder of these files.
const CONTAINER: &str = r#"
set -eu
image=buttress-trial-$$
buildah build --quiet --tag "$image" -f packaging/Containerfile "$1" >/dev/null
container=$(buildah from "$image")
trap 'buildah rm "$container" >/dev/null; buildah rmi "$image" >/dev/null' EXIT
inside() { buildah run --isolation chroot "$container" -- /usr/bin/buttress "$@"; }
inside --version
inside mkfs disk.img --size 256M --label box
inside subvolume create disk.img:/home
inside check disk.img
"#;

/// The shells that may be here and read a file of completions without running it: program, option,
/// file below `usr/share`.
const SHELLS: [(&str, &str, &str); 2] = [
    ("zsh", "-n", "zsh/vendor-completions/_buttress"),
    ("fish", "--no-execute", "fish/vendor_completions.d/buttress.fish"),
];

/// With this variable, a shell that is missing is a failure.
const REQUIRE: &str = "BUTTRESS_REQUIRE_LINUX";

/// The first page of the guide: a new user copies and pastes its commands.
const PAGE: &str = "docs/guide/first-volume.md";

/// The folders that the program writes to outside of volumes.
const STATE: [&str; 2] = ["run/buttress", "var/lib/buttress"];

/// A new Debian in a folder. What is installed there must leave nothing behind.
struct Debian {
    root: PathBuf,
    mounts: Mounts,
    before: BTreeSet<String>,
}

impl Debian {
    /// Makes it under `target/dist`, or takes the one of an earlier trial.
    fn new() -> Result<Self> {
        let root = PathBuf::from("target/dist/debian");
        if !root.join("etc/debian_version").exists() {
            let mut bootstrap = Command::new("debootstrap");
            bootstrap.args(["--variant=minbase", "--include=fuse3,mount", "bookworm"]).arg(&root);
            run_command(&mut bootstrap)?;
        }
        let mounts = Mounts::new(&root)?;
        let before = files(&root)?;
        Ok(Self { root, mounts, before })
    }

    /// Fails if a file is left.
    fn end(self) -> Result<()> {
        let mut left: Vec<_> = files(&self.root)?.difference(&self.before).cloned().collect();
        let state = STATE.iter().map(|place| self.root.join(place));
        let state = state.filter(|place| place.exists());
        left.extend(state.map(|place| place.display().to_string()));
        drop(self.mounts);
        if left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", left.join(", "))) }
    }
}

/// Installs the RPM package by rpm, runs [`STEPS`], and removes the package again.
pub(super) fn rpm(package: &Path) -> Result<()> {
    let debian = Debian::new()?;
    let root = std::path::absolute(&debian.root).map_err(|error| error.to_string())?;
    let rpm = |args: &[&str]| {
        let mut rpm = Command::new("rpm");
        // Debian's rpm installs nothing unless it is told twice. The folder has no packages of rpm
        // that the package could need.
        rpm.arg("--root").arg(&root).args(["--dbpath", RPM_DATABASE, "--nodeps"]);
        rpm.arg("--force-debian").args(args);
        rpm
    };
    run_command(rpm(&["--install"]).arg(package))?;
    inside(&debian.root, STEPS)?;
    run_command(rpm(&["--erase"]).arg("buttress"))?;
    let database = debian.root.join(&RPM_DATABASE[1..]);
    std::fs::remove_dir_all(&database)
        .map_err(|error| format!("{}: {error}", database.display()))?;
    debian.end()
}

/// Unpacks an archive as the guide says, runs [`STEPS`], and removes the files in `tree` again.
pub(super) fn archive(archive: &Path, tree: &Path) -> Result<()> {
    let debian = Debian::new()?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).args(["--strip-components=1", "--keep-directory-symlink", "-C"]);
    run_command(tar.arg(&debian.root))?;
    inside(&debian.root, STEPS)?;
    let mut remove = Command::new("sh");
    run_command(remove.args(["-c", REMOVE, "sh"]).arg(tree).arg(&debian.root))?;
    // The archive has no script that removes what the program has written.
    for place in STATE {
        drop(std::fs::remove_dir_all(debian.root.join(place)));
    }
    debian.end()
}

/// Unpacks an archive for another machine, and runs its program by an emulator.
pub(super) fn emulated(archive: &Path, emulator: &str) -> Result<()> {
    let folder = PathBuf::from("target/dist/unpacked");
    drop(std::fs::remove_dir_all(&folder));
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).args(["--strip-components=1", "-C"]).arg(&folder);
    run_command(&mut tar)?;
    let mut program = Command::new(emulator);
    run_command(program.arg(folder.join("usr/bin/buttress")).arg("--version"))?;
    std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Where rpm keeps its database in the new Debian.
const RPM_DATABASE: &str = "/var/lib/rpm-trial";

/// Removes the files of a tree, which is the first parameter, from the second folder.
const REMOVE: &str = r#"
set -eu
to=$(cd "$2" && pwd)
cd "$1"
find . ! -type d -print0 | (cd "$to" && xargs -0 rm)
find . -depth -mindepth 1 -type d -print0 |
    (cd "$to" && xargs -0 rmdir --ignore-fail-on-non-empty)
"#;

/// Installs the Debian package, runs [`STEPS`] and [`PAGE`], and removes the package again.
pub(super) fn debian(package: &Path) -> Result<()> {
    let debian = Debian::new()?;
    let root = debian.root.clone();
    let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let to = root.join("root").join(&name);
    std::fs::copy(package, &to).map_err(|error| format!("{}: {error}", package.display()))?;
    let page = std::fs::read_to_string(PAGE).map_err(|error| format!("{PAGE}: {error}"))?;
    // A new Debian has no lists of packages, and the package needs none.
    inside(&root, &format!("apt-get install --yes --no-install-recommends /root/{name}"))?;
    inside(&root, STEPS)?;
    let has = |program: &str| {
        ["usr/bin", "usr/sbin"].iter().any(|folder| root.join(folder).join(program).exists())
    };
    let page = Page::of(&page, &has).map_err(|error| format!("{PAGE}:{error}"))?;
    // What the page prints is shown, and not compared: `cargo xtask guide` does that.
    inside(&root, &format!("set -ex\nbegin() {{ :; }}\nprints() {{ :; }}\n{}", page.script))?;
    inside(&root, "apt-get purge --yes buttress")?;
    std::fs::remove_file(&to).map_err(|error| error.to_string())?;
    debian.end()
}

/// Builds an image of a container from the installed files in `tree`, and runs the program there.
pub(super) fn container(tree: &Path) -> Result<()> {
    run_command(Command::new("sh").args(["-c", CONTAINER, "sh"]).arg(tree))
}

/// Lets the shells of this machine read their completions in `tree`.
pub(super) fn completions(tree: &Path) -> Result<()> {
    for (shell, option, file) in SHELLS {
        let file = tree.join("usr/share").join(file);
        match Command::new(shell).arg(option).arg(&file).status() {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(format!("{shell}: {}: {status}", file.display())),
            Err(error) if std::env::var_os(REQUIRE).is_some() => {
                return Err(format!("{REQUIRE} is set: {shell}: {error}"));
            }
            Err(error) => println!("SKIPPED: {shell}: {error}"),
        }
    }
    Ok(())
}

fn inside(root: &Path, script: &str) -> Result<()> {
    run_command(Command::new("chroot").arg(root).args(["sh", "-c", script]))
}

/// All files of the new Debian, without files that dpkg and the running system write.
fn files(root: &Path) -> Result<BTreeSet<String>> {
    let mut find = Command::new("find");
    find.arg(root).args(["-xdev", "-not", "-path", "*/var/lib/dpkg/*", "-not", "-path"]);
    find.args(["*/var/log/*", "-not", "-path", "*/var/cache/*"]);
    find.args(["-not", "-path", "*/var/lib/apt/*"]);
    // These folders are in memory on a running system.
    find.args(["-not", "-path", "*/run/*", "-not", "-path", "*/tmp/*"]);
    let output = find.output().map_err(|error| format!("find: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// The mounts that a running system has. They are unmounted at the end.
struct Mounts {
    places: Vec<PathBuf>,
}

impl Mounts {
    fn new(root: &Path) -> Result<Self> {
        let mut mounts = Self { places: Vec::new() };
        for (kind, place) in
            [("proc", "proc"), ("sysfs", "sys"), ("bind", "dev"), ("devpts", "dev/pts")]
        {
            let to = root.join(place);
            let mut mount = Command::new("mount");
            match kind {
                "bind" => mount.args(["--bind", "/dev"]),
                _ => mount.args(["-t", kind, kind]),
            };
            run_command(mount.arg(&to))?;
            // Mounts below the copy of /dev must not appear in /dev.
            run_command(Command::new("mount").arg("--make-private").arg(&to))?;
            mounts.places.push(to);
        }
        Ok(mounts)
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for place in self.places.iter().rev() {
            // A mount that is still used ends with its last user.
            let _ = Command::new("umount").arg("--lazy").arg(place).status();
        }
    }
}
