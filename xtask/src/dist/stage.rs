//! The tree of installed files, and the packages of it.
//!
//! Every package holds the same tree, so all packages install the same files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::inventory;
use super::tool::{Result, run_command};

/// The names of the helpers of mount(8) and umount(8).
const HELPERS: [&str; 6] = [
    "mount.buttress",
    "mount.fuse.buttress",
    "mount.fuseblk.buttress",
    "umount.buttress",
    "umount.fuse.buttress",
    "umount.fuseblk.buttress",
];
/// Where each shell finds completions: shell, folder, file.
const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions", "buttress"),
    ("zsh", "usr/share/zsh/vendor-completions", "_buttress"),
    ("fish", "usr/share/fish/vendor_completions.d", "buttress.fish"),
];

/// Lays out everything that is installed; the program writes its own pages.
pub(super) fn tree(tree: &Path, program: &Path) -> Result<()> {
    remove(tree)?;
    install(tree, program)?;
    let pages = tree.join("pages");
    run_command(Command::new(program).arg("manual").arg(&pages))?;
    for entry in fs::read_dir(&pages).map_err(|error| error.to_string())?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let section = name.rsplit('.').next().unwrap_or("8").to_owned();
        let to = folder(tree, &format!("usr/share/man/man{section}"))?.join(&name);
        fs::rename(entry.path(), &to).map_err(|error| error.to_string())?;
        run_command(Command::new("gzip").args(["-9n"]).arg(&to))?;
    }
    remove(&pages)?;
    for (shell, place, name) in COMPLETIONS {
        let output = Command::new(program).args(["completions", shell]).output();
        let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
        write(&folder(tree, place)?.join(name), &output.stdout)?;
    }
    Ok(())
}

/// The section of `CHANGELOG.md` for a version, without its heading.
pub(super) fn notes(version: &str) -> Result<String> {
    let text = read(Path::new("CHANGELOG.md"))?;
    let text = String::from_utf8_lossy(&text);
    let heading = format!("\n## {version}");
    let from = text.find(&heading).ok_or(format!("CHANGELOG.md has no section {version}"))?;
    let section = text[from + heading.len()..].split_once('\n').map_or("", |(_, rest)| rest);
    Ok(section.split("\n## ").next().unwrap_or_default().trim().to_owned() + "\n")
}

/// Lays out the same files as [`tree`], for a program that does not run here. Copies the program's
/// pages from the tree `like`.
pub(super) fn tree_of(tree: &Path, program: &Path, like: &Path) -> Result<()> {
    remove(tree)?;
    install(tree, program)?;
    let share = like.join("usr/share");
    if share.exists() {
        run_command(Command::new("cp").arg("-a").arg(share).arg(tree.join("usr")))?;
    }
    Ok(())
}

/// The program, its helpers, its units and its documents.
fn install(tree: &Path, program: &Path) -> Result<()> {
    let to = folder(tree, "usr/bin")?.join("buttress");
    fs::copy(program, &to).map_err(|error| format!("{}: {error}", program.display()))?;
    mode(&to, 0o755)?;
    let helpers = folder(tree, "usr/sbin")?;
    for name in HELPERS {
        symlink("../bin/buttress", helpers.join(name)).map_err(|error| error.to_string())?;
    }
    // The links are in a folder of their own, which users can put into their search path.
    let words = folder(tree, "usr/libexec/buttress/bin")?;
    for name in ["btrfs", "mkfs.btrfs"] {
        symlink("../../../bin/buttress", words.join(name)).map_err(|error| error.to_string())?;
    }
    let units = folder(tree, "usr/lib/systemd/system")?;
    for name in ["buttress-scrub@.service", "buttress-scrub@.timer"] {
        write(&units.join(name), &read(&Path::new("packaging/systemd").join(name))?)?;
    }
    let documents = folder(tree, "usr/share/doc/buttress")?;
    for name in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        write(&documents.join(name), &read(Path::new(name))?)?;
    }
    write(&documents.join("LICENCES-OF-PARTS"), inventory::licences()?.as_bytes())?;
    let mut copyright = read(Path::new("LICENSE-MIT"))?;
    copyright.extend(b"\nOr, at your choice, Apache-2.0: see LICENSE-APACHE.\n");
    copyright.extend(b"What the program is linked with: see LICENCES-OF-PARTS.\n");
    write(&documents.join("copyright"), &copyright)
}

/// A compressed archive of a tree, for machines without a package manager.
pub(super) fn archive(dist: &Path, tree: &Path, name: &str) -> Result<PathBuf> {
    let file = dist.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-czf"]).arg(&file);
    tar.arg(format!("--transform=s,^\\./,{name}/,")).arg("-C").arg(tree).arg(".");
    run_command(&mut tar)?;
    Ok(file)
}

/// The name of the Debian package.
pub(super) fn deb_name(version: &str) -> String {
    format!("buttress_{version}_amd64.deb")
}

/// The Debian package, made with dpkg's own builder.
pub(super) fn deb(dist: &Path, tree: &Path, version: &str) -> Result<PathBuf> {
    let root = dist.join("deb");
    remove(&root)?;
    run_command(Command::new("cp").arg("-a").arg(tree).arg(&root))?;
    let size = Command::new("du").args(["-sk", "--apparent-size"]).arg(&root).output();
    let size = size.map_err(|error| error.to_string())?.stdout;
    let size = String::from_utf8_lossy(&size);
    let kib = size.split_whitespace().next().unwrap_or("0");
    let control = format!(
        "Package: buttress\nVersion: {version}\nArchitecture: amd64\nSection: admin\n\
         Priority: optional\nMaintainer: The Buttress developers <buttress@example.org>\n\
         Installed-Size: {kib}\nRecommends: fuse3\nSuggests: btrfs-progs\n\
         Description: read-write btrfs outside the kernel\n Buttress makes, mounts, changes, \
         checks and serves btrfs volumes without the\n kernel's btrfs: as a program, through \
         FUSE, and over NBD.\n"
    );
    let debian = folder(&root, "DEBIAN")?;
    write(&debian.join("control"), control.as_bytes())?;
    let after = debian.join("postrm");
    write(&after, &read(Path::new("packaging/deb/postrm"))?)?;
    mode(&after, 0o755)?;
    let file = dist.join(deb_name(version));
    let mut build = Command::new("dpkg-deb");
    run_command(build.args(["--build", "--root-owner-group"]).arg(&root).arg(&file))?;
    remove(&root)?;
    Ok(file)
}

/// The RPM package, made with rpmbuild.
pub(super) fn rpm(dist: &Path, tree: &Path, version: &str) -> Result<PathBuf> {
    let absolute = |path: &Path| fs::canonicalize(path).map_err(|error| error.to_string());
    let top = folder(dist, "rpm")?;
    let (top, tree) = (absolute(&top)?, absolute(tree)?);
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--quiet", "--target", "x86_64", "packaging/buttress.spec"]);
    build.arg("--define").arg(format!("_topdir {}", top.display()));
    build.arg("--define").arg(format!("tree {}", tree.display()));
    build.arg("--define").arg(format!("version {version}"));
    // The tree is final: rpmbuild must not strip or compress any file again.
    build.arg("--define").arg("__os_install_post %{nil}");
    build.arg("--define").arg("_build_id_links none");
    build.arg("--define").arg("_binary_payload w7.xzdio");
    run_command(&mut build)?;
    let name = format!("buttress-{version}-1.x86_64.rpm");
    let file = dist.join(&name);
    fs::rename(top.join("RPMS/x86_64").join(&name), &file).map_err(|error| error.to_string())?;
    remove(&top)?;
    Ok(file)
}

fn folder(tree: &Path, name: &str) -> Result<PathBuf> {
    let folder = tree.join(name);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(file, bytes).map_err(|error| format!("{}: {error}", file.display()))?;
    mode(file, 0o644)
}

fn mode(file: &Path, mode: u32) -> Result<()> {
    let permissions = fs::Permissions::from_mode(mode);
    fs::set_permissions(file, permissions).map_err(|error| format!("{}: {error}", file.display()))
}

fn remove(tree: &Path) -> Result<()> {
    match fs::remove_dir_all(tree) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", tree.display()))
        }
        _ => Ok(()),
    }
}
